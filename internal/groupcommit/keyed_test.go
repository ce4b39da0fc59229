package groupcommit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/groupcommit"
)

func TestKeyed_CallsOfOneKeyShareACommitter(t *testing.T) {
	t.Parallel()
	made := map[string]int{}
	k := groupcommit.NewKeyed(func(key string) *committer {
		made[key]++
		return groupcommit.New(groupcommit.Config[int, int]{Alone: 1, Patience: time.Second})
	})
	a, b := k.Acquire("a"), k.Acquire("b")
	require.NotSame(t, a, b)
	require.Same(t, a, k.Acquire("a"))
	k.Release("a")
	require.Same(t, a, k.Acquire("a"), "it is in use")
	k.Release("a")
	k.Release("a")
	require.Same(t, a, k.Acquire("a"), "the last one is kept")
	k.Release("b")
	require.Same(t, b, k.Acquire("b"))
	k.Release("b")
	k.Release("a")
	require.Equal(t, map[string]int{"a": 1, "b": 1}, made)
	require.NotSame(t, b, k.Acquire("b"), "only the last one is kept")
}
