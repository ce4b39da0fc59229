package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		_, err = io.WriteString(c, []string{"GET / HTTP/1.1\r\nHost:", form, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n"}[i%3])
		require.NoError(t, err)
	}
	client := http.Client{Timeout: 10 * time.Second}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	patience, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, server.Shutdown(patience), "a visitor is waited for")
	require.ErrorIs(t, <-ended, http.ErrServerClosed)
}
