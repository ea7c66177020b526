"""Made-up secrets in the places where they turn up, and texts that hold none. Shared by the redaction tests."""

import base64
from typing import NamedTuple

OWN = "hk_live_Zx81mQ0vTt7/Lw+93b"


class Sample(NamedTuple):
    """A text, the parts of it that must not survive, and one part that must."""

    kind: str
    text: str
    secrets: tuple[str, ...]
    stays: str = ""


def _key_body(lines: int) -> str:
    raw = bytes((7 * i * i + 31 * i + 11) % 256 for i in range(48 * lines - 16))
    encoded = base64.b64encode(b"\x30\x82\x04\xa3" + raw).decode()
    return "\n".join(encoded[i : i + 64] for i in range(0, len(encoded), 64))


KEY_BODY = _key_body(14)
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_BODY}\n-----END RSA PRIVATE KEY-----"
_LINES = tuple(KEY_BODY.split("\n"))
JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


SAMPLES: tuple[Sample, ...] = (
    # addresses
    Sample("url password", "use https://svc:hunter2@db.example/", ("hunter2",), "https://svc:"),
    Sample(
        "url password", "git clone https://me:p%40ss-w0rd@git.example/r.git", ("p%40ss", "w0rd"), "git clone"
    ),
    Sample("url password", "postgres://app:s3cr/et@pg:5432/main", ("s3cr", "/et@"), "postgres://app:"),
    Sample("url password", "postgresql://app:p@ss@w0rd1@pg:5432/main", ("p@ss", "w0rd1"), "pg:5432/main"),
    Sample("url password", "redis://:hunter2@cache:6379/0", ("hunter2",), "cache:6379"),
    Sample("url password", "mongodb+srv://u:hunter2@h1:27017,h2:27017/db", ("hunter2",), "h1:27017,h2"),
    Sample("url password", r'{"u":"https:\/\/svc:hunter2@db.example\/"}', ("hunter2",), "db.example"),
    Sample("url password", "next=https%3A%2F%2Fsvc%3Ahunter2%40db.example%2F&x=1", ("hunter2",), "&x=1"),
    Sample("url password", "amqp://guest:gu3stpw@mq//vhost", ("gu3stpw",), "mq//vhost"),
    Sample("url password", "app:hunter2@tcp(db:3306)/main", ("hunter2",), "tcp(db:3306)"),
    Sample("url password", "root:hunter2@localhost:3306/main", ("hunter2",), "localhost:3306"),
    Sample("url password", "ftp://anonymous:a;b|c@ftp.example/x", ("a;b|c",), "ftp.example"),
    Sample(
        "url user",
        "https://0f1e2d3c4b5a69788796a5b4c3d2e1f0@sentry.example/4",
        ("0f1e2d3c", "d2e1f0"),
        "sentry",
    ),
    Sample("url user", "https://a1b2c3d4e5f6:x-oauth-basic@github.com/o/r", ("a1b2c3d4",), "github.com/o/r"),
    # user flags
    Sample("password", "curl -u admin:hunter2 https://x.example", ("hunter2",), "curl -u admin:"),
    Sample("password", "curl -u 'admin:hun ter2' https://x.example", ("hun", "ter2"), "https://x.example"),
    Sample("password", 'curl -uadmin:hunter2 -o "x y" https://x.example', ("hunter2",), '-o "x y"'),
    Sample("password", "curl --user=admin:hunter2 https://x", ("hunter2",), "--user=admin:"),
    Sample("password", "curl -x p:1 --proxy-user me:hunter2 https://x", ("hunter2",), "-x p:1"),
    Sample("password", 'sh -c "curl -u \\"admin:hunter2\\" https://x"', ("hunter2",), "https://x"),
    Sample("password", "curl -u 1000:4711 https://x", ("4711",), "1000"),
    # headers
    Sample("bearer", "Authorization: Bearer abc.def-ghi_123==", ("abc", "ghi_123"), "Authorization: Bearer "),
    Sample(
        "bearer", "curl -H 'Authorization: Bearer opaque9token' https://x", ("opaque9token",), "https://x"
    ),
    Sample("bearer", '{"Authorization": "Bearer opaque9token", "n": 1}', ("opaque9token",), '"n": 1'),
    Sample("bearer", r"{\"authorization\":\"bearer opaque9token\",\"n\":1}", ("opaque9token",), r"\"n\":1"),
    Sample("bearer", "sent bearer 0123456789abcdef0123 along", ("0123456789abcdef",), " along"),
    Sample("basic", f"Authorization: Basic {_b64('admin:hunter2')}", (_b64("admin:hunter2")[:6],), "Basic "),
    Sample("basic", f"got basic {_b64('admin:hunter2x')} here", (_b64("admin:hunter2x")[:6],), " here"),
    Sample(
        "authorization",
        "Authorization: Token 9944b09199c62bcf9418ad846dd0e4bb",
        ("9944b091", "e4bb"),
        "Token ",
    ),
    Sample("authorization", "authorization=hunter2hunter", ("hunter2",), "authorization="),
    Sample("authorization", "Proxy-Authorization: Custom Zm9vYmFy9xyz", ("Zm9v", "9xyz"), "Proxy-"),
    Sample(
        "authorization",
        'Authorization: Digest username="bob", realm="r", nonce="dcd98b", response="6629fae49393"',
        ("6629fae", "dcd98b"),
        "Authorization: Digest",
    ),
    Sample(
        "authorization",
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20260101/eu/s3/aws4_request, "
        "SignedHeaders=host, Signature=fe5f80f77d5fa3beca038a248ff027d0",
        ("AKIAIOS", "fe5f80f7"),
        "AWS4-HMAC-SHA256",
    ),
    Sample("api key", "X-Api-Key: abcd1234efgh", ("abcd1234",), "X-Api-Key: "),
    Sample("token", "curl -H 'PRIVATE-TOKEN: abcd1234efgh' https://x", ("abcd1234",), "https://x"),
    # cookies
    Sample("cookie", "Cookie: sid=abc123def; theme=dark9", ("abc123def", "dark9"), "Cookie: sid="),
    Sample(
        "cookie", "Set-Cookie: sid=abc123def; Path=/; HttpOnly; Secure", ("abc123def",), "Path=/; HttpOnly"
    ),
    Sample("cookie", "curl -b 'sid=abc123def; x=9q9q' https://x", ("abc123def", "9q9q"), "https://x"),
    Sample("cookie", "curl --cookie sid=abc123def https://x", ("abc123def",), "https://x"),
    Sample("cookie", '{"cookie": "sid=abc123def; x=9q9q9"}', ("abc123def", "9q9q9"), '"}'),
    # assignments
    Sample("password", "password is hunter2", ("hunter2",), "password is "),
    Sample(
        "password",
        "The password for the db server is: hunter2.",
        ("hunter2",),
        "The password for the db server",
    ),
    Sample("password", "change the password to hunter22, please", ("hunter22",), "please"),
    Sample("password", "log in with password hunter2 now", ("hunter2",), " now"),
    Sample(
        "password", "password = 'correct horse; battery'", ("correct", "horse", "battery"), "password = '"
    ),
    Sample("password", "PASSWORD=p@ss&w0rd!x ./run", ("p@ss", "w0rd", "!x"), "./run"),
    Sample("password", "export DB_PASSWORD=hunter2; rm -rf /srv", ("hunter2",), "; rm -rf /srv"),
    Sample("password", "export DB_PASS=hunter2 && make", ("hunter2",), " && make"),
    Sample("password", '$env:PGPASSWORD = "hunter2"; psql', ("hunter2",), "; psql"),
    Sample("password", "PASSWORD=hun\"ter2\"'x9' make", ("hun", "ter2", "x9"), " make"),
    Sample("password", 'PASSWORD="hun"ter2 make', ("hun", "ter2"), " make"),
    Sample("password", "password=hun\\ ter2 make", ("hun", "ter2"), " make"),
    Sample("password", "Server=db;User Id=app;Password=hun,ter2;Database=x", ("hun", "ter2"), ";Database=x"),
    Sample("password", "host=db user=app password=hunter2 dbname=x", ("hunter2",), " dbname=x"),
    Sample("password", '{"password": "hun\\"ter2", "user": "bob"}', ("hun", "ter2"), '"user": "bob"'),
    Sample("password", r'"{\"password\":\"hunter2\",\"user\":\"bob\"}"', ("hunter2",), r"\"user\":\"bob\""),
    Sample("password", r'"{\\\"password\\\":\\\"hunter2\\\",\\\"n\\\":1}"', ("hunter2",), r"\\\"n\\\":1"),
    Sample("password", r'{"cmd": "export PASSWORD=hunter2\nrm -rf /srv"}', ("hunter2",), r"\nrm -rf /srv"),
    Sample("password", "password:\n  hunter2\n", ("hunter2",), "password:"),
    Sample("password", "**Password:** hunter2", ("hunter2",), "**Password:**"),
    Sample("password", "- name: DB_PASSWORD\n  value: hunter2", ("hunter2",), "value: "),
    Sample("password", '{"name": "DB_PASSWORD", "value": "hunter2"}', ("hunter2",), '"value": "'),
    Sample("password", "<password>hunter2</password>", ("hunter2",), "</password>"),
    Sample("password", "config['password'] = 'hunter2'", ("hunter2",), "config["),
    Sample("password", ":password => 'hunter2',", ("hunter2",), ":password => '"),
    Sample("password", 'client.setPassword("hunter2")', ("hunter2",), "client.setPassword("),
    Sample("token", 'request.header("X-Token", "abcd1234").send()', ("abcd1234",), ".send()"),
    Sample("password", "dbPassword: hunter2", ("hunter2",), "dbPassword: "),
    Sample("password", "CREATE USER x IDENTIFIED BY 'hunter2'", ("hunter2",), "IDENTIFIED BY"),
    Sample("password", "ALTER ROLE x WITH PASSWORD 'hunter2'", ("hunter2",), "WITH PASSWORD"),
    Sample("password", "ENV PASSWORD hunter", ("hunter",), "ENV PASSWORD "),
    Sample("password", "POST /login user=bob&password=hunter2&x=1", ("hunter2",), "&x=1"),
    Sample("password", "body password%3Dhunter2", ("hunter2",), "body"),
    Sample("password", 'password="hunter2', ("hunter2",), "password="),
    Sample("password", "${TOKEN:-x} passphrase: tr0ub4dor", ("tr0ub4dor",), "passphrase: "),
    Sample("secret", "client_secret=abcDEF123", ("abcDEF123",), "client_secret="),
    Sample(
        "secret", "aws_secret_access_key = " + AWS_SECRET, (AWS_SECRET[:8], AWS_SECRET[-8:]), "aws_secret"
    ),
    Sample("token", "GET /x?access_token=abcd1234&user=bob", ("abcd1234",), "&user=bob"),
    Sample("token", "https://x.example/cb?token=abcd1234#top", ("abcd1234",), "https://x.example/cb?token="),
    Sample("token", "//registry.npmjs.org/:_authToken=abcd1234-ef", ("abcd1234",), "_authToken="),
    Sample("api key", "api key is abcd1234", ("abcd1234",), "api key is "),
    Sample("api key", 'apiKey: "abcd1234"', ("abcd1234",), "apiKey: "),
    Sample(
        "api key",
        "AccountName=x;AccountKey=Zm9vYmFyYmF6cXV4==;EndpointSuffix=y",
        ("Zm9vYmFy",),
        ";EndpointSuffix",
    ),
    Sample(
        "url token",
        "https://s3/x?X-Amz-Date=2026&X-Amz-Signature=fe5f80f77d5fa3be",
        ("fe5f80f7",),
        "X-Amz-Date=2026",
    ),
    Sample("url token", "https://maps.example/js?key=ABCD1234efgh&v=3", ("ABCD1234",), "&v=3"),
    # flags
    Sample("password", "tool --password hunter --verbose", ("hunter",), "--verbose"),
    Sample("password", "tool --db-password=hunter --verbose", ("hunter",), "--verbose"),
    Sample("token", "tool --token 'abcd 1234' --verbose", ("abcd", "1234"), "--verbose"),
    Sample("api key", "tool --api-key abcd1234 --verbose", ("abcd1234",), "--verbose"),
    Sample("password", "mysql -u root -phunter2 main", ("hunter2",), "mysql -u root -p"),
    Sample("password", "mysqldump -h db -p'hun ter2' main > x.sql", ("hun", "ter2"), "> x.sql"),
    Sample("password", "sshpass -p hunter ssh root@host reboot", ("hunter ",), "ssh root@host reboot"),
    Sample("password", "sshpass -phunter ssh root@host reboot", ("hunter",), "ssh root@host reboot"),
    Sample("password", "docker login -u me -p hunter reg.example", ("hunter",), "docker login -u me"),
    Sample("password", "redis-cli -h c -a hunter ping", ("hunter",), "ping"),
    Sample("password", "ldapsearch -D cn=x -w hunter -b dc=x", ("hunter",), "-b dc=x"),
    Sample("password", "htpasswd -bc /etc/f bob hunter", (" hunter",), "htpasswd -bc /etc/f bob"),
    Sample("password", "smbclient -U bob%hunter //h/share", ("hunter",), "//h/share"),
    Sample("password", "openssl rsa -in k.pem -passin pass:hunter -out o", ("hunter",), "-out o"),
    Sample("password", "echo hunter | sudo -S systemctl restart x", ("hunter",), "systemctl restart x"),
    Sample("password", "echo 'bob:hunter' | chpasswd", ("hunter",), "chpasswd"),
    Sample("password", "echo hunter | docker login -u me --password-stdin", ("hunter",), "--password-stdin"),
    Sample("password", "7z x -phunter a.7z", ("hunter",), "a.7z"),
    Sample("password", "plink -ssh -pw hunter root@h", ("hunter",), "root@h"),
    # tokens by shape
    Sample("aws access key", "id AKIAIOSFODNN7EXAMPLE end", ("AKIAIOS", "EXAMPLE"), " end"),
    Sample(
        "aws secret key", f"AKIAIOSFODNN7EXAMPLE {AWS_SECRET}", ("AKIAIOS", AWS_SECRET[:8], AWS_SECRET[-8:])
    ),
    Sample("github token", "use ghp_16C7e42F292c6912E7710c838347Ae178B4a ok", ("ghp_", "8B4a"), " ok"),
    Sample("github token", "github_pat_11ABCDEFG0aBcDeFgHiJkL_0123456789abcdef", ("github_pat", "abcdef")),
    Sample("gitlab token", "glpat-abcDEF123456_ghi-jk", ("glpat", "ghi-jk")),
    Sample("slack token", "xoxb-1234567890-abcdefghij", ("xoxb", "abcdefghij")),
    Sample(
        "webhook", "https://hooks.slack.com/services/T00/B00/XXXXyyyy9999", ("XXXXyyyy",), "hooks.slack.com"
    ),
    Sample("stripe key", "sk_live_4eC39HqLyjWDarjtT1zdp7dc", ("sk_live", "p7dc")),
    Sample("openai key", "sk-proj-abcDEF123_456-789ghi", ("sk-proj", "789ghi")),
    Sample("openai key", "key sk-TESTabcdefghijklmnop", ("sk-TEST", "mnop")),
    Sample("anthropic key", "sk-ant-api03-abcDEF_123-xyz", ("sk-ant", "xyz")),
    Sample("google key", "AIzaSyA1234567890abcdefghijklmnopqrstuv", ("AIza", "stuv")),
    Sample("google key", "ya29.a0AfH6SMBx1234567890", ("ya29", "67890")),
    Sample("npm token", "npm_abcdefghijklmnopqrstuvwxyz0123456789", ("npm_", "6789")),
    Sample("pypi token", "pypi-AgEIcHlwaS5vcmcCJDEyMzQ1Njc4", ("pypi-A", "Njc4")),
    Sample("sendgrid key", "SG.abcdefghij1234567890.ABCDEFGHIJ-_1234567890", ("SG.abc", "-_1234")),
    Sample("twilio key", "SK0123456789abcdef0123456789abcdef", ("SK0123", "89abcdef")),
    Sample("telegram bot token", "bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1", ("AAHdqT", "Dsaw1")),
    Sample("hugging face token", "hf_abcdefghijklmnopqrstuvwx", ("hf_abc", "uvwx")),
    Sample("vault token", "hvs.CAESIJabcdefghijklmnop", ("hvs.", "mnop")),
    Sample("generic prefixed", "hk_live_0123456789abcdef", ("hk_live", "abcdef")),
    Sample("generic prefixed", "token acme_prod_a1b2c3d4e5f6g7h8 seen", ("a1b2c3", "g7h8"), " seen"),
    Sample("jwt", f"jwt {JWT} end", (JWT[:10], JWT[40:60], JWT[-8:]), " end"),
    Sample(
        "password hash",
        "root:$6$saltsalt$hashHASHhash/0123456789.abc:19000:0",
        ("saltsalt", "hashHASH"),
        ":19000:0",
    ),
    Sample("password hash", "bob:$apr1$abcdefgh$0123456789abcdefghij./", ("abcdefgh", "0123456789"), "bob:"),
    Sample("password hash", "{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g0abcd==", ("W6ph5Mm5",)),
    # private keys
    Sample("private key", f"key:\n{PEM}\nend", _LINES, "\nend"),
    Sample("private key", PEM.replace("\n", "\\n") + '", "n": 1}', _LINES, '"n": 1}'),
    Sample("private key", PEM.replace("\n", " ") + " ; ls", _LINES, " ; ls"),
    Sample("private key", PEM.replace("\n", "\r\n") + "\r\nend", _LINES, "end"),
    Sample("private key", "\n".join("    " + line for line in PEM.split("\n")) + "\nend", _LINES, "end"),
    Sample("private key", PEM[:500], tuple(line[:20] for line in PEM[:500].split("\n")[1:])),
    Sample("private key", PEM[600:] + "\nend", _LINES[-3:], "end"),
    Sample(
        "private key",
        f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n{KEY_BODY}\n",
        _LINES[:-1],
    ),
    Sample(
        "private key",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n"
        f"{KEY_BODY}\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----",
        (*_LINES, "=aB3d"),
    ),
    Sample(
        "private key",
        f"body b3BlbnNzaC1rZXktdjEAAAAABG5vbmU\n{KEY_BODY}\n",
        ("b3BlbnNz", *_LINES[:-1]),
        "body",
    ),
    Sample("private key", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj x", ("MIIEvQ", "ggSj"), " x"),
    # base64 of a text with a secret
    Sample(
        "encoded",
        f"data {_b64('hk_live_0123456789abcdef')} end",
        (_b64("hk_live_0123456789abcdef")[4:12],),
        " end",
    ),
    Sample(
        "encoded", f"echo {_b64('export PASSWORD=hunter2')} x", (_b64("export PASSWORD=hunter2")[8:20],), " x"
    ),
    # split and disguised
    Sample("zero width", "sk-\u200babc123\u200cdef456\u2060ghi", ("abc123", "def456", "ghi")),
    Sample("zero width", "pass\u200bword=hun\u200bter2 x", ("hun", "ter2"), " x"),
    Sample("zero width glue", "word\u200bghp_16C7e42F292c6912E771", ("16C7e42F", "E771"), "word"),
    Sample("zero width glue", "word\u200bmysql -u root -phunter2 main", ("hunter2",), " main"),
    Sample("soft hyphen", "AKIA\u00adIOSFODNN7EXAMPLE", ("AKIA", "EXAMPLE")),
    Sample("nul", "ghp_16C7e42F\x00292c6912E7710c", ("16C7e42F", "E7710c")),
    Sample("escape sequence", "ghp_16C7e4\x1b[31m2F292c6912E7710c", ("16C7e4", "E7710c")),
    Sample("tag characters", "ghp_16C7e4\U000e0041\U000e00422F292c6912E7710c", ("16C7e4", "E7710c")),
    Sample("full width", "ｓｋ－ａｂｃ１２３ｄｅｆ４５６", ("ａｂｃ", "４５６")),
    Sample("full width", "ｐａｓｓｗｏｒｄ＝ｈｕｎｔｅｒ２ x", ("ｈｕｎ", "ｔｅｒ２"), " x"),
    Sample("mathematical", "𝚐𝚑𝚙_16C7e42F292c6912E7710c", ("16C7e42F", "E7710c")),
    Sample("no-break space", "password\u00a0is\u00a0hunter2", ("hunter2",)),
    Sample("combining", "p\u0336a\u0336s\u0336s\u0336w\u0336o\u0336r\u0336d\u0336=hunter2", ("hunter2",)),
)

#: Nothing in these is a secret, and a reviewer needs every character.
PLAIN: tuple[str, ...] = (
    "send a mail to bob@example.com about the mail server",
    "mailto:bob@example.com",
    "To: Bob <bob@example.com>",
    "sudo -u root ls -la /srv",
    "psql -U postgres -h db -p 5432 main",
    "docker run -u 1000:1000 -p 8080:80 nginx",
    "ssh -p 2222 root@host.example",
    "git@github.com:owner/repo.git",
    "ssh://git@github.com/owner/repo.git",
    "git clone https://github.com/owner/repo.git",
    "http://localhost:8080/path?x=1&y=2#frag",
    "http://[::1]:8080/",
    "docker pull nginx:1.25@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "id 123e4567-e89b-42d3-a456-426614174000",
    "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12",
    "run_0123456789abcdef0123456789abcdef",
    "/approvals/0190a5d2-7c1b-7def-8123-456789abcdef/",
    "/usr/local/lib/python3.11/site-packages/django/core/management/base.py",
    "/Users/Alice/Projects/Repository1/src/Main",
    "rm -rf /srv/reports/2025 && systemctl restart report-worker",
    "find . -name '*.pyc' -print0 | xargs -0 rm -f",
    'for f in *.log; do gzip "$f"; done',
    "tar -xzf a.tar.gz -C /opt --strip-components=1",
    "export TOKEN=$(cat /run/secrets/token)",
    'curl -H "Authorization: Bearer $TOKEN" https://x.example',
    'curl -H "Authorization: Bearer ${API_TOKEN}" https://x.example',
    'curl -u "$USER:$PASS" https://x.example',
    "https://user:${DB_PASSWORD}@db.example/",
    "password = os.environ['DB_PASSWORD']",
    'password = getpass.getpass("Password: ")',
    "token: ${{ secrets.GITHUB_TOKEN }}",
    "def login(user: str, password: str) -> None:",
    '{"password": null, "token": "", "secret": true}',
    "the password is incorrect",
    "your token is expired, please sign in",
    "a password is required",
    "password for more is not set",
    "unexpected token '<' in JSON",
    "max_tokens: 4096, prompt_tokens=12, total_tokens=1,234",
    '"usage": {"input_tokens": 12, "output_tokens": 34}',
    "token_type: bearer_only",
    "--password-file /run/secrets/x --token-file y",
    "docker login --password-stdin",
    "the tokenizer splits tokens; the secretary keeps minutes",
    "passengers pass the compass; bypass=1",
    "PASS: test_login 12 passed",
    "author: Jane Doe, authors=3",
    "PWD=/home/bob OLDPWD=/srv",
    "bearer authentication is used; basic configuration follows",
    "the keyboard; primary_key=id; cache_key=abc; idempotency_key: 42",
    'pattern_key: rm_recursive, pattern_keys: ["rm", "delete"]',
    "session_id: sess-42, session_key: my-project",
    "sk-learn sk-estimator-checks-common",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl bob@host",
    "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUJ\n-----END CERTIFICATE-----",
    "grep -r 'BEGIN PRIVATE KEY' /etc",
    "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==",
    "echo aGVsbG8gd29ybGQsIHRoaXMgaXMgcGxhaW4= | base64 -d",
    "kubectl get secret my-app -o yaml",
    "credentials: 'include'",
    "2026-12-01T08:00:00.000000Z INFO [worker:1] done in 12 ms",
    "if (a[1] > b[2] && c == '}') { return x.y.z; }",
    "ratio 3:4, 10:30:00, a::b, C:\\Users\\bob\\x.txt",
    "日本語のテキストと絵文字",
    "[x](https://example.com/a_b) and `code` and **bold**",
    "date -u +%H:%M",
    "rsync -u host:/srv/data /backup",
    "git push -u origin main",
)
