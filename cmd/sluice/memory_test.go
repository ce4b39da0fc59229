package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// serve starts the program as its users have it, without what the race detector adds, on a server, and
// returns it and the page's URL. It ends with the test.
func serve(t *testing.T, program, server string) (process *os.Process, url string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "serve", "--write", "--addr", "127.0.0.1:0", "--url", "redis://"+server)
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	r := bufio.NewReader(said)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(os.Stderr, r) }() // ends with the process
	url, isURL := strings.CutPrefix(strings.TrimSpace(line), "Serving ")
	require.True(t, isURL, line)
	return cmd.Process, strings.TrimSuffix(url, "/")
}

// viewers is how many look at the page at the same time, and by how much what they look at is less
// than that of which docs/page.md has the figures: those are with SLUICE_TEST_VIEWERS=12 and 120.
func viewers(t *testing.T) (n, less int) {
	text, ok := os.LookupEnv("SLUICE_TEST_VIEWERS")
	if !ok {
		return 12, 12
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n, 1
}

// TestServe_StaysSmall: the process that serves the page has less than 100 MB at its peak, whatever
// is in the queues.
func TestServe_StaysSmall(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sluice")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	large, escapes := strings.Repeat("x", 1_000_000), strings.Repeat("\xff", 500)
	for name, test := range map[string]struct { // as many as make the figures of docs/page.md
		fill  func(ctx context.Context, p redis.Pipeliner, i int)
		n     int
		paths []string
	}{
		"tasks of 1 MB": {func(ctx context.Context, p redis.Pipeliner, i int) {
			p.ZAdd(ctx, "Queue:q", redis.Z{Score: 1, Member: i})
			p.HSet(ctx, "{Queue:q}:tasks", i, large)
		}, 300, []string{"/queues/q?n=250", "/queues/q/tasks/7", "/queues/q/tasks/7?payload=1", "/queues/q?id=9"}},
		"letters of 400 KB": {func(ctx context.Context, p redis.Pipeliner, i int) {
			p.ZAdd(ctx, "{Queue:q}:dead", redis.Z{Score: float64(i), Member: i})
			p.HSet(ctx, "{Queue:q}:state", i, "1:dead:connection refused")
			if i%8 == 0 {
				p.HSet(ctx, "{Queue:q}:tasks", i, large[:400_000])
			}
		}, 9000, []string{"/queues/q?state=dead&n=250", "/queues/q?state=dead&reason=refused", "/queues/q?state=dead&reason=nothing"}},
		"escapes": {func(ctx context.Context, p redis.Pipeliner, i int) {
			id := fmt.Sprint(i, escapes)
			p.ZAdd(ctx, "{Queue:q}:dead", redis.Z{Score: float64(i), Member: id})
			p.HSet(ctx, "{Queue:q}:state", id, "1:dead:"+strings.Repeat(escapes, 200))
		}, 1000, []string{"/queues/q?state=dead&n=250", "/queues/q?state=dead&n=250&reason=nothing"}},
		"queues and locks": {func(ctx context.Context, p redis.Pipeliner, i int) {
			p.ZAdd(ctx, fmt.Sprint("Queue:", i, large[:200]), redis.Z{Score: 1, Member: "a"})
			p.Set(ctx, fmt.Sprint("Lock:", i, large[:200]), strings.Repeat("o", 64)+":"+strings.Repeat("A", 26), time.Hour)
		}, 20_000, []string{"/", "/?q=777", "/locks", "/locks?match=*7*"}},
		"a giant": {func(ctx context.Context, p redis.Pipeliner, _ int) {
			p.ZAdd(ctx, "Queue:q", redis.Z{Score: 1, Member: "giant"})
			p.HSet(ctx, "{Queue:q}:tasks", "giant", strings.Repeat(large, 20))
		}, 1, []string{"/queues/q", "/queues/q/tasks/giant", "/queues/q/tasks/giant?payload=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			server, ctx := redistest.Start(t), t.Context()
			p := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: time.Minute}).Pipeline()
			n, less := viewers(t)
			keys := max(1, test.n/less)
			for i := range keys {
				if test.fill(ctx, p, i); i%20 == 19 || i == keys-1 {
					_, err := p.Exec(ctx)
					require.NoError(t, err)
				}
			}
			process, url := serve(t, program, server.Addr)
			look(t, url, test.paths, n)
			peak := peakOf(t, process.Pid)
			t.Logf("%d viewers: %d MB", n, peak)
			require.Less(t, peak, 100)
		})
	}
}

// look has viewers ask for pages at the same time, twice each.
func look(t *testing.T, url string, paths []string, n int) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	good := make([]atomic.Int64, len(paths))
	for range n {
		all.Go(func() {
			for i, path := range slices.Concat(paths, paths) {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				response, err := client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				if response.StatusCode == http.StatusOK { // a busy machine may have Redis answer too late
					good[i%len(paths)].Add(1)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	all.Wait()
	for i := range good {
		require.NotZero(t, good[i].Load(), paths[i])
	}
}

// peakOf returns the most megabytes that a process has had so far.
func peakOf(t *testing.T, pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("this system does not tell what a process has had")
	}
	peak := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, peak)
	kb, err := strconv.Atoi(string(peak[1]))
	require.NoError(t, err)
	return kb / 1000
}
