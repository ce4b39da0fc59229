package sluice

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestSignalIsPassedOn: one release wakes one waiter, and one that leaves before
// it has looked passes the signal on.
func TestSignalIsPassedOn(t *testing.T) {
	// Not parallel: TestNoGoroutine takes whatever stands in this package for ours.
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	defer func() { _ = rdb.Close() }()
	h := newHub(rdb)
	defer h.close(t.Context())
	first, second := h.join("a"), h.join("a")
	h.mu.Lock()
	h.topics["a"].asked = true // as if it had been
	h.handle(&redis.Message{Channel: "a"})
	h.mu.Unlock()
	require.Len(t, first.C, 1)
	require.Empty(t, second.C)
	h.leave("a", first, false)
	require.Len(t, second.C, 1)
}

// TestBusy: what the server says of itself is waited out; Redis 6 wraps what a
// script meets.
func TestBusy(t *testing.T) {
	for text, want := range map[string]bool{
		"READONLY You can't write against a read only replica.":                       true,
		"LOADING Redis is loading the dataset in memory":                              true,
		"TRYAGAIN Multiple keys request during rehashing of slot":                     true,
		"CLUSTERDOWN The cluster is down":                                             true,
		"ERR Error running script (call to f_1): @user_script:5: -READONLY You can't": true,
		"ERR unknown command READONLY":                                                false,
		"OOM command not allowed when used memory > 'maxmemory'.":                     false,
	} {
		require.Equal(t, want, isBusy(serverError(text)), text)
	}
}
