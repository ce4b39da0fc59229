package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	require.NoError(t, run(ctx, "127.0.0.1:0"))
}

// TestService_StopsGracefully: slow tasks of one kind do not hold up the other, a handler that runs ends, and
// what was not begun is given back without a lost attempt.
func TestService_StopsGracefully(t *testing.T) {
	t.Parallel()
	r := sluicetest.New(t)
	begun, release, mails := make(chan string, 10), make(chan struct{}), make(chan string, 10)
	s, err := NewService(r.Client(), slog.New(slog.DiscardHandler), map[string]kind{
		"report": {1, time.Minute, func(_ context.Context, e sluice.Entry) error { begun <- e.ID; <-release; return nil }},
		"mail":   {4, time.Minute, func(_ context.Context, e sluice.Entry) error { mails <- e.ID; return nil }},
	})
	require.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener) }()
	post := func(path string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listener.Addr().String()+path, nil)
		require.NoError(t, err)
		reply, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, reply.Body.Close())
		return reply.StatusCode
	}
	require.Equal(t, 200, post("/report?id=first"))
	require.Equal(t, "first", <-begun)
	require.Equal(t, 200, post("/report?id=second"))
	require.Equal(t, 200, post("/mail?id=7"))
	require.Equal(t, "7", <-mails)
	require.Equal(t, 404, post("/fax?id=7"))
	require.Equal(t, 400, post("/mail"))

	stop()
	close(release)
	require.NoError(t, <-ended)
	r.RequireNotEnqueued("report", "first")
	r.RequireEmpty("mail")
	if second := r.Stats("report"); second.Due == 1 { // else it was begun before the stop, and is done
		require.Zero(t, r.RequireEnqueued("report", "second").Attempt)
	}
}
