package groupcommit_test

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/groupcommit"
)

func TestCommitter_KeepsNothingOfAPeak(t *testing.T) {
	t.Parallel()
	type large = [1 << 10]byte
	c := groupcommit.New(groupcommit.Config[*large, int]{
		Patience: time.Minute,
		Alone:    1, Items: 250, Bytes: 1 << 20, Grace: grace, Start: func(f func()) { go f() },
		Commit: func(calls []*groupcommit.Call[*large, int]) {
			for _, call := range calls {
				call.Settle(1)
			}
		},
	})
	require.Nil(t, c.Enter(t.Context(), nil, 1, 1))
	calls := make([]*groupcommit.Call[*large, int], 2000)
	args := make([]weak.Pointer[large], len(calls))
	for i := range calls {
		arg := new(large)
		args[i] = weak.Make(arg)
		calls[i] = c.Enter(t.Context(), arg, 1, 1)
	}
	c.Exit()
	for i, call := range calls {
		_, err := call.Wait()
		require.NoError(t, err)
		calls[i] = nil
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		for _, arg := range args {
			if arg.Value() != nil {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond)
	runtime.KeepAlive(c)
}

// TestCommitter_KeepsNoCallWhileItGoesOn: a small group that follows a large one may take long.
func TestCommitter_KeepsNoCallWhileItGoesOn(t *testing.T) {
	t.Parallel()
	type large = [1 << 10]byte
	hold := make(chan struct{})
	c := groupcommit.New(groupcommit.Config[*large, int]{
		Patience: time.Second, // in which all calls come
		Alone:    1, Items: 250, Bytes: 1 << 20, Grace: grace, Start: func(f func()) { go f() },
		Commit: func(calls []*groupcommit.Call[*large, int]) {
			if calls[0].Arg == nil {
				<-hold
			}
			for _, call := range calls {
				call.Settle(1)
			}
		},
	})
	require.Nil(t, c.Enter(t.Context(), nil, 1, 1))
	args := make([]weak.Pointer[large], 249) // one more makes a whole group, which does not wait
	calls := make([]*groupcommit.Call[*large, int], len(args))
	for i := range calls {
		arg := new(large)
		args[i] = weak.Make(arg)
		calls[i] = c.Enter(t.Context(), arg, 1, 1)
	}
	last := c.Enter(t.Context(), nil, 250, 1) // a group of its own
	for i, call := range calls {
		_, err := call.Wait()
		require.NoError(t, err)
		calls[i] = nil
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		for _, arg := range args {
			if arg.Value() != nil {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond)
	c.Exit()
	close(hold)
	_, err := last.Wait()
	require.NoError(t, err)
}
