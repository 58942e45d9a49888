package main

import (
	"bufio"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// cloud is a Bigtable with TLS that accepts only tokens, and servers that issue them: the
// parts of Google Cloud that a connection needs.
type cloud struct {
	bigtable *txntest.Emulator
	tokens   *httptest.Server // plain HTTP
	login    *httptest.Server // oauth2.googleapis.com, with TLS
	proxy    net.Listener     // leads to login
	cert     string
	key      *rsa.PrivateKey // of service accounts

	mu     sync.Mutex
	quota  []string            // quota projects that requests named
	grants map[string][]string // permissions, by account
}

var everything = []string{"readRows", "mutateRows", "sampleRowKeys", "get", "create", "update", "delete", "list"}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{grants: map[string][]string{"admin@p": everything, "user@p": {"readRows", "mutateRows", "get"}, "reader@p": {"readRows", "get"}, "nobody@p": nil}}
	var key string
	c.cert, key = writeCertificate(t, "oauth2.googleapis.com")
	secure, err := credentials.NewServerTLSFromFile(c.cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if c.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	opts := append([]grpc.ServerOption{grpc.Creds(secure)}, txntest.Permissions(c.permissions)...)
	opts = append(opts, grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		c.mu.Lock()
		c.quota = append(c.quota, metadata.ValueFromIncomingContext(ctx, "x-goog-user-project")...)
		c.mu.Unlock()
		return handle(ctx, req)
	}))
	if c.bigtable, err = txntest.StartEmulator("127.0.0.1:0", append(opts, txntest.Strict()...)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.bigtable.Close)
	c.tokens = httptest.NewServer(http.HandlerFunc(c.issue))
	t.Cleanup(c.tokens.Close)
	c.login = httptest.NewUnstartedServer(http.HandlerFunc(c.issue))
	pair, err := tls.LoadX509KeyPair(c.cert, key)
	if err != nil {
		t.Fatal(err)
	}
	c.login.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	c.login.StartTLS()
	t.Cleanup(c.login.Close)
	if c.proxy, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.proxy.Close() })
	go c.serveProxy()
	return c
}

// serveProxy leads every CONNECT to login.
func (c *cloud) serveProxy() {
	for {
		in, err := c.proxy.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = in.Close() }()
			from := bufio.NewReader(in)
			if r, err := http.ReadRequest(from); err != nil || r.Method != http.MethodConnect {
				return
			}
			out, err := net.Dial("tcp", c.login.Listener.Addr().String())
			if err != nil {
				return
			}
			defer func() { _ = out.Close() }()
			_, _ = io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n")
			go func() { _, _ = io.Copy(out, from) }()
			_, _ = io.Copy(in, out)
		}()
	}
}

// permissions knows tokens of the form token:ACCOUNT, and those that service accounts sign
// themselves.
func (c *cloud) permissions(token, _ string) ([]string, error) {
	account, issued := strings.CutPrefix(token, "token:")
	if !issued {
		account = c.signed(token)
	}
	has, known := c.grants[account]
	if !known {
		return nil, status.Error(codes.Unauthenticated, "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.")
	}
	return has, nil
}

// signed returns the account that has signed a token for Bigtable; "" for a wrong token.
func (c *cloud) signed(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	sig, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if rsa.VerifyPKCS1v15(&c.key.PublicKey, crypto.SHA256, sum[:], sig) != nil {
		return ""
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Iss, Aud, Scope string
		Exp             int64
	}
	if json.Unmarshal(text, &claims) != nil || time.Now().Unix() > claims.Exp || !strings.HasSuffix(claims.Scope, "/auth/bigtable.data") && !strings.HasSuffix(claims.Scope, "/auth/cloud-platform") {
		return ""
	}
	return claims.Iss
}

// issue answers requests for tokens.
func (c *cloud) issue(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	answer := map[string]any{"token_type": "Bearer", "expires_in": 3600}
	switch {
	case strings.HasSuffix(r.URL.Path, ":generateAccessToken"):
		// The caller must be allowed to act for the account.
		if _, err := c.permissions(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ""); err != nil {
			http.Error(w, `{"error":{"code":401,"status":"UNAUTHENTICATED"}}`, http.StatusUnauthorized)
			return
		}
		answer = map[string]any{"accessToken": "token:user@p", "expireTime": time.Now().Add(time.Hour).Format(time.RFC3339)}
	case r.Form.Get("subject_token") == "subject" && r.Form.Get("audience") == "//iam.googleapis.com/pool":
		answer["access_token"], answer["issued_token_type"] = "token:user@p", "urn:ietf:params:oauth:token-type:access_token"
	case r.Form.Get("refresh_token") == "fresh":
		answer["access_token"] = "token:user@p"
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":"invalid_grant","error_description":"Token has been expired or revoked."}`)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// serviceAccount is the key file of an account.
func (c *cloud) serviceAccount(account string) map[string]any {
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		panic(err)
	}
	return map[string]any{
		"type": "service_account", "project_id": "p", "private_key_id": "1", "client_email": account, "token_uri": c.tokens.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	}
}

func with(m map[string]any, key string, value any) map[string]any {
	m[key] = value
	return m
}

// run runs percctl with a file of credentials.
func (c *cloud) run(t *testing.T, file map[string]any, env []string, args ...string) (code int, out string) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command("percctl", args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "BIGTABLE_EMULATOR_HOST=") && !strings.HasPrefix(v, "GOOGLE_") && !strings.HasPrefix(strings.ToUpper(v), "HTTPS_PROXY=") && !strings.HasPrefix(v, "CLOUDSDK_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "HOME="+home, "SSL_CERT_FILE="+c.cert, "PERCCTL_PROJECT=p", "PERCCTL_INSTANCE=i", "PERCCTL_DATA_ENDPOINT="+c.bigtable.Addr(), "PERCCTL_ADMIN_ENDPOINT="+c.bigtable.Addr(), "GCE_METADATA_HOST=127.0.0.1:1", "NO_GCE_CHECK=true")
	if file != nil {
		text, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(home, "credentials.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, "PERCCTL_CREDS="+path)
		env = slices.Clone(env) // tests share it
		for i := range env {
			env[i] = strings.ReplaceAll(env[i], "$CREDS", path)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	b, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(b)
}

// TestCredentials: percctl connects with every kind of credentials, and says what to do if
// one is refused.
func TestCredentials(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	if code, out := c.run(t, c.serviceAccount("admin@p"), nil, "table", "init", "t", "--families", "f"); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	subject := filepath.Join(t.TempDir(), "subject")
	if err := os.WriteFile(subject, []byte("subject"), 0o600); err != nil {
		t.Fatal(err)
	}
	impersonated := func(source map[string]any) map[string]any {
		return map[string]any{"type": "impersonated_service_account", "service_account_impersonation_url": c.tokens.URL + "/v1/projects/-/serviceAccounts/user@p:generateAccessToken", "source_credentials": source, "delegates": []string{}}
	}
	external := map[string]any{
		"type": "external_account", "audience": "//iam.googleapis.com/pool", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
		"token_url": c.tokens.URL + "/sts", "credential_source": map[string]any{"file": subject},
	}
	person := func(refresh string) map[string]any {
		return map[string]any{"type": "authorized_user", "client_id": "id", "client_secret": "secret", "refresh_token": refresh}
	}
	elsewhere, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	stranger := &cloud{key: elsewhere, tokens: c.tokens}
	proxied := []string{"HTTPS_PROXY=http://" + c.proxy.Addr().String()}
	const login = "run gcloud auth application-default login, or set PERCCTL_CREDS"
	set := []string{"set", "t/r/f:q", "v", "--yes"}
	t.Run("kinds", func(t *testing.T) {
		for name, test := range map[string]struct {
			file map[string]any
			env  []string
			args []string
			code int
			want string
		}{
			"service account":              {c.serviceAccount("user@p"), nil, set, 0, ""},
			"application default":          {c.serviceAccount("user@p"), []string{"GOOGLE_APPLICATION_CREDENTIALS=$CREDS", "PERCCTL_CREDS="}, set, 0, ""},
			"impersonation":                {impersonated(c.serviceAccount("nobody@p")), nil, set, 0, ""},
			"impersonation of a person":    {impersonated(person("fresh")), proxied, set, 0, ""},
			"external account":             {external, nil, set, 0, ""},
			"person":                       {person("fresh"), proxied, set, 0, ""},
			"quota project":                {c.serviceAccount("user@p"), []string{"GOOGLE_CLOUD_QUOTA_PROJECT=payer"}, set, 0, ""},
			"universe domain":              {with(c.serviceAccount("user@p"), "universe_domain", "example.org"), []string{"GOOGLE_CLOUD_UNIVERSE_DOMAIN=example.org"}, set, 0, ""},
			"another universe domain":      {c.serviceAccount("user@p"), []string{"GOOGLE_CLOUD_UNIVERSE_DOMAIN=example.org"}, set, 5, "universe domain"},
			"may not write":                {c.serviceAccount("reader@p"), nil, set, 1, "the account lacks the permission bigtable.tables.mutateRows: grant it roles/bigtable.user"},
			"may not make tables":          {c.serviceAccount("user@p"), nil, []string{"table", "init", "u", "--families", "f"}, 1, "the account lacks the permission bigtable.tables.create: grant it roles/bigtable.admin"},
			"key of a deleted account":     {stranger.serviceAccount("user@p"), nil, set, 5, login},
			"person whose login has ended": {person("old"), proxied, set, 5, login},
			"no credentials":               {nil, nil, set, 5, login},
			"wrong audience":               {with(map[string]any{"audience": "//iam.googleapis.com/other", "type": "external_account", "subject_token_type": external["subject_token_type"], "token_url": external["token_url"]}, "credential_source", external["credential_source"]), nil, set, 5, login},
			"unknown server":               {c.serviceAccount("user@p"), []string{"SSL_CERT_FILE=" + subject, "SSL_CERT_DIR=" + filepath.Dir(subject)}, append(slices.Clone(set), "--timeout", "3s"), 5, "certificate signed by unknown authority"},
			"no credentials in the file":   {map[string]any{"key": "secret"}, nil, set, 2, "is no JSON file with a type"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // one waits five seconds for a metadata server
				code, out := c.run(t, test.file, test.env, test.args...)
				if code != test.code || !strings.Contains(out, test.want) || strings.Contains(out, "secret") {
					t.Errorf("exit code %d, want %d and %q: %s", code, test.code, test.want, out)
				}
			})
		}
	})
	if code, out := c.run(t, c.serviceAccount("user@p"), nil, "get", "t/r/f:q"); code != 0 || !strings.Contains(out, "v") {
		t.Error(fmt.Sprint(code), out)
	}
	t.Run("faults", func(t *testing.T) {
		// Connections with faults have the same credentials.
		long.Test(t, "conformance runs transactions under faults")
		code, out := c.run(t, c.serviceAccount("admin@p"), nil, "conformance", "--yes", "--only", "soak", "--soak", "1s")
		if code != 0 || !strings.Contains(out, "2 kept, 0 limits, 0 broken, 0 untested") {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
	// An account without permissions is refused; one that may read is not such an account.
	for account, want := range map[string]int{"nobody@p": 0, "reader@p": 4} {
		text, err := json.Marshal(c.serviceAccount(account))
		if err != nil {
			t.Fatal(err)
		}
		denied := filepath.Join(t.TempDir(), "denied.json")
		if err := os.WriteFile(denied, text, 0o600); err != nil {
			t.Fatal(err)
		}
		code, out := c.run(t, c.serviceAccount("admin@p"), nil, "conformance", "--yes", "--only", "permission-code", "--denied-creds", denied)
		if code != want || !strings.Contains(out, "permission-code") {
			t.Errorf("%s: exit code %d, want %d: %s", account, code, want, out)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.quota, "payer") {
		t.Errorf("the quota project was not sent: %v", slices.Compact(c.quota))
	}
}
