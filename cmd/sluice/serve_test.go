package main

import (
	"bytes"
	"context"
	"io"
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
	a := &app{in: strings.NewReader(""), out: io.Discard, errOut: &errOut, lookupEnv: func(name string) (string, bool) {
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
