package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"
)

// buffer is what a program writes while it runs.
type buffer struct {
	mu sync.Mutex // guards what follows
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestServe_UntilInterrupted asks for the page, as a viewer, and interrupts the program.
func TestServe_UntilInterrupted(t *testing.T) {
	s := newStage(t)
	s.reset()
	viewer := s.become("viewer", s.ruleOf())
	var errOut buffer
	a := &app{in: strings.NewReader(""), out: &output{Writer: io.Discard}, errOut: &errOut, lookupEnv: func(name string) (string, bool) {
		value, ok := viewer.env[name]
		return value, ok
	}}
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- a.run(ctx, []string{"serve", "--addr", "127.0.0.1:0"}) }()
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/`)
	require.Eventually(t, func() bool { return address.MatchString(errOut.String()) }, 10*time.Second, 10*time.Millisecond)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address.FindString(errOut.String()), nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode, "%s", body)
	require.Contains(t, string(body), "orders")
	require.NotContains(t, errOut.String(), "can be reached from other machines")
	interrupt()
	require.Equal(t, exitOK, <-ended)
}

// TestServe_SlowVisitorsAreNotWaitedFor: a crowd of visitors that send their requests slowly, or
// read no answer, holds up no other, and each of them is left. The times are a hundredth of those
// of the program.
func TestServe_SlowVisitorsAreNotWaitedFor(t *testing.T) {
	page := make([]byte, 16<<20) // more than what the kernel takes for one that does not read
	server := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		if r.Method == http.MethodGet && r.URL.Path == "/large" {
			_, _ = w.Write(page)
		}
	}))
	for _, timeout := range []*time.Duration{&server.ReadHeaderTimeout, &server.ReadTimeout, &server.WriteTimeout, &server.IdleTimeout} {
		*timeout /= 100
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	form := "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\na="
	for i := range 300 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", listener.Addr().String())
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		// An error says that it was left before.
		_, _ = io.WriteString(c, []string{"GET / HTTP/1.1\r\nHost:", form, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n"}[i%3])
	}
	client := http.Client{Timeout: 10 * time.Second}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // where this program is held up it is left, too
		response, err := client.Do(request)
		return err == nil && response.Body.Close() == nil
	}, 30*time.Second, time.Millisecond)
	patience, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, server.Shutdown(patience), "a visitor is waited for")
	require.ErrorIs(t, <-ended, http.ErrServerClosed)
}

// serving runs the program until the test ends, and returns the address that it says, and what it writes.
func serving(t *testing.T, s shell, args ...string) (address string, errOut *buffer) {
	t.Helper()
	errOut = &buffer{}
	a := &app{in: strings.NewReader(""), out: &output{Writer: io.Discard}, errOut: errOut, lookupEnv: func(name string) (string, bool) {
		value, ok := s.env[name]
		return value, ok
	}}
	ctx, interrupt := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan int, 1)
	go func() { ended <- a.run(ctx, append(args, "--addr", "127.0.0.1:0")) }() // it ends with the test
	t.Cleanup(func() {
		interrupt()
		require.Equal(t, exitOK, <-ended, errOut.String())
	})
	says := regexp.MustCompile(`https?://127\.0\.0\.1:\d+/\S*`)
	require.Eventually(t, func() bool { return says.MatchString(errOut.String()) }, 10*time.Second, 10*time.Millisecond)
	return says.FindString(errOut.String()), errOut
}

// ask sends a request, and returns the status and the body.
func ask(t *testing.T, client *http.Client, method, url string, change func(r *http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	if change != nil {
		change(r)
	}
	response, err := client.Do(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

// TestServe_TellsMachines: the metrics, health and API below the prefix, beside the page; and the page's
// check of the host holds for them.
func TestServe_TellsMachines(t *testing.T) {
	s := newStage(t)
	s.reset()
	viewer := s.become("viewer", s.ruleOf()) // what reading needs is enough
	address, _ := serving(t, viewer, "serve", "--prefix", "/ops", "--stock")
	require.True(t, strings.HasSuffix(address, "/ops/"), address)
	for path, want := range map[string]string{
		"": "<title>", "metrics": `sluice_queue_tasks{messaging_destination_name="orders"`, "healthz": "ok",
		"api/queues": `"complete": true`, "api/queues/orders": `"name": "orders"`,
	} {
		code, body := ask(t, http.DefaultClient, http.MethodGet, address+path, nil)
		require.Equal(t, http.StatusOK, code, path)
		require.Contains(t, body, want, path)
		code, _ = ask(t, http.DefaultClient, http.MethodGet, address+path, func(r *http.Request) { r.Host = "evil.example" })
		require.Equal(t, http.StatusMisdirectedRequest, code, path)
		code, _ = ask(t, http.DefaultClient, http.MethodGet, strings.Replace(address, "/ops/", "/", 1)+path, nil)
		require.Equal(t, http.StatusNotFound, code, path)
	}
}

// TestServe_Users: a visitor without a password sees the health alone; the log of changes names the user, and no
// password.
func TestServe_Users(t *testing.T) {
	s := newStage(t)
	s.reset()
	hash, err := bcrypt.GenerateFromPassword([]byte("correct horse"), bcrypt.MinCost)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(file, []byte("# who is on call\n\nanna:"+string(hash)+"\n"), 0o600))
	address, errOut := serving(t, s.shell, "serve", "--write", "--users", file)
	require.NotContains(t, errOut.String(), "asks for no password")
	for _, path := range []string{"", "metrics", "api/queues", "queues/orders"} {
		for _, try := range []func(r *http.Request){
			nil,
			func(r *http.Request) { r.SetBasicAuth("anna", "wrong") },
			func(r *http.Request) { r.SetBasicAuth("otto", "correct horse") },
			func(r *http.Request) { r.SetBasicAuth("", "") },
		} {
			code, body := ask(t, http.DefaultClient, http.MethodGet, address+path, try)
			require.Equal(t, http.StatusUnauthorized, code, path)
			require.NotContains(t, body, "orders")
		}
		for range 2 { // the second time it is known
			code, _ := ask(t, http.DefaultClient, http.MethodGet, address+path, func(r *http.Request) { r.SetBasicAuth("anna", "correct horse") })
			require.Equal(t, http.StatusOK, code, path)
		}
	}
	code, _ := ask(t, http.DefaultClient, http.MethodGet, address+"healthz", nil)
	require.Equal(t, http.StatusOK, code)

	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar}
	_, page := ask(t, browser, http.MethodGet, address+"queues/orders", func(r *http.Request) { r.SetBasicAuth("anna", "correct horse") })
	token := regexp.MustCompile(`name="token" value="([0-9a-f]+)"`).FindStringSubmatch(page)
	require.NotNil(t, token)
	code, body := ask(t, browser, http.MethodPost, address+"queues/orders", func(r *http.Request) {
		r.SetBasicAuth("anna", "correct horse")
		r.Header.Set("Origin", strings.TrimSuffix(address, "/"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Body = io.NopCloser(strings.NewReader("do=pause&for=0s&token=" + token[1]))
	})
	require.Equal(t, http.StatusOK, code, body)
	require.Regexp(t, `paused?.* user=anna`, errOut.String())
	require.NotContains(t, errOut.String(), "correct horse")
}

// TestServe_UserHeader: a proxy names the user; without one no visitor is let in.
func TestServe_UserHeader(t *testing.T) {
	s := newStage(t)
	s.reset()
	address, _ := serving(t, s.shell, "serve", "--user-header", "X-Forwarded-User")
	code, _ := ask(t, http.DefaultClient, http.MethodGet, address, nil)
	require.Equal(t, http.StatusUnauthorized, code)
	code, _ = ask(t, http.DefaultClient, http.MethodGet, address, func(r *http.Request) { r.Header.Set("X-Forwarded-User", "anna") })
	require.Equal(t, http.StatusOK, code)
}

// TestUsers_UnknownNamesTakeAsLong as known ones, whatever their hashes cost; and a guesser is
// stopped, who does not keep out those that have asked before.
func TestUsers_UnknownNamesTakeAsLong(t *testing.T) {
	cheap, err := bcrypt.GenerateFromPassword([]byte("cheap"), bcrypt.MinCost)
	require.NoError(t, err)
	costly, err := bcrypt.GenerateFromPassword([]byte("costly"), bcrypt.MinCost+3)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(file, []byte("anna:"+string(costly)+"\notto:"+string(cheap)+"\n"), 0o600))
	u, err := usersOf(file)
	require.NoError(t, err)
	require.Equal(t, costly, u.costliest)

	address := "192.0.2.1:1"
	try := func(name, password string) int {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = address
		r.SetBasicAuth(name, password)
		if _, ok := u.ask(w, r); ok {
			return http.StatusOK
		}
		return w.Code
	}
	require.Equal(t, http.StatusOK, try("anna", "costly"))
	u.checks["192.0.2.1"].SetLimit(0) // no time passes for it
	tries := 0
	for ; try("otto", "guessed") == http.StatusUnauthorized; tries++ {
		require.LessOrEqual(t, tries, checksAtOnce)
	}
	require.GreaterOrEqual(t, tries, checksAtOnce-1)
	require.Equal(t, http.StatusTooManyRequests, try("otto", "guessed"))
	require.Equal(t, http.StatusTooManyRequests, try("otto", "cheap"))
	require.Equal(t, http.StatusOK, try("anna", "costly"))
	address = "192.0.2.2:1"
	require.Equal(t, http.StatusOK, try("otto", "cheap"), "another address")
}

// TestServe_WrongUsers: what is no file of users starts no server, and shows none of its lines.
func TestServe_WrongUsers(t *testing.T) {
	s := newStage(t)
	for _, text := range []string{"", "# no user\n", "anna:secret\n", "secret\n", ":secret\n", "anna:{SHA}secret=\n"} {
		file := filepath.Join(t.TempDir(), "users")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		r := s.run("serve", "--addr", "127.0.0.1:0", "--users", file)
		require.Equal(t, exitUsage, r.code, text)
		require.NotContains(t, r.err, "secret")
	}
	for _, args := range [][]string{{"--users", "/nowhere"}, {"--serve-cert", "a"}, {"--users", "a", "--user-header", "b"}} {
		require.Equal(t, exitUsage, s.run(append([]string{"serve", "--addr", "127.0.0.1:0"}, args...)...).code, args)
	}
}

// TestExporter_TLS: it speaks TLS, and serves no page.
func TestExporter_TLS(t *testing.T) {
	s := newStage(t)
	s.reset()
	spare := httptest.NewTLSServer(nil) // for its certificate
	defer spare.Close()
	der, err := x509.MarshalPKCS8PrivateKey(spare.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	cert, key, pool := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem"), x509.NewCertPool()
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: spare.Certificate().Raw}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	pool.AddCert(spare.Certificate())
	address, _ := serving(t, s.shell, "exporter", "--serve-cert", cert, "--serve-key", key)
	require.True(t, strings.HasPrefix(address, "https://"), address)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	t.Cleanup(client.CloseIdleConnections)
	code, body := ask(t, client, http.MethodGet, address+"metrics", nil)
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "\nsluice_exporter_up 1")
	code, _ = ask(t, client, http.MethodGet, address, nil)
	require.Equal(t, http.StatusNotFound, code)
}
