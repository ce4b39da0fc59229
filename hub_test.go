package sluice

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestSignalIsPassedOn: one release wakes one waiter, and one that leaves before
// it has looked passes the signal on.
func TestSignalIsPassedOn(t *testing.T) {
	t.Parallel()
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
	h.leave("a", first)
	require.Len(t, second.C, 1)
}
