//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/examples/service/shop"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestRun does each kind once, as that of the service by Sluice.
func TestRun(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var asked atomic.Int32
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(partner.Close)
	file := filepath.Join(t.TempDir(), "shop.db")
	db, err := shop.Open(t.Context(), file, 2)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-redis", server.Addr, "-db", file, "-web", "127.0.0.1:0", "-partner", partner.URL, "-pay-in", "4s", "-sweep", "@every 1s"}, in)
		_ = in.Close()
	}()
	url, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	post := func(path string, body []byte) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.TrimSpace(url)+path, bytes.NewReader(body))
		require.NoError(t, err)
		reply, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, reply.Body.Close())
		return reply.StatusCode
	}
	var picture bytes.Buffer
	require.NoError(t, png.Encode(&picture, image.NewRGBA(image.Rect(0, 0, 64, 64))))

	require.Equal(t, 200, post("/buy?id=paid", nil))
	require.Equal(t, 200, post("/buy?id=paid", nil), "a repeat")
	require.Equal(t, 200, post("/pay?id=paid&to=ann", nil))
	require.Equal(t, 200, post("/pay?id=paid&to=ann", nil), "a repeat")
	require.Equal(t, 200, post("/buy?id=unpaid", nil))
	require.Equal(t, 409, post("/buy?id=late", nil), "sold out")
	require.Equal(t, 200, post("/thumbnail?id=good", picture.Bytes()))
	require.Equal(t, 200, post("/thumbnail?id=bad", []byte("no picture")))
	require.Equal(t, 200, post("/export?id=1", nil))
	number := func(query string) (n int) {
		require.NoError(t, db.DB.QueryRowContext(t.Context(), query).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool {
		return number("SELECT count(*) FROM done WHERE id IN ('receipt:paid', 'webhook:paid', 'thumbnail:good', 'export:1', 'sweep')") == 5 &&
			number("SELECT stock FROM item") == 1 // the unpaid one is back
	}, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, int32(2), asked.Load())

	rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	dead, err := asynq.NewInspectorFromRedisClient(rdb).ListArchivedTasks("low")
	require.NoError(t, err)
	require.Len(t, dead, 1)
	require.Equal(t, "thumbnail:bad", dead[0].ID)
	stop()
	require.NoError(t, <-ended)
}
