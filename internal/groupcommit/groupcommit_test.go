package groupcommit_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/groupcommit"
)

const (
	roundTrip = time.Millisecond
	grace     = 15 * time.Millisecond
	lost      = -1
)

type (
	committer = groupcommit.Committer[int, int]
	call      = groupcommit.Call[int, int]
)

// server answers each call with its argument, after a round trip.
type server struct {
	*committer
	commit func(calls []*call) // nil to answer

	mu     sync.Mutex
	groups [][]int // the arguments, as they came
}

func newServer(underWay int, commit func(calls []*call)) *server {
	s := &server{commit: commit}
	s.committer = groupcommit.New(groupcommit.Config[int, int]{
		Patience: 50 * time.Millisecond,
		Alone:    underWay, Items: 10, Bytes: 100, Grace: grace,
		Start: func(f func()) { go f() }, Commit: s.receive, Lost: lost,
	})
	return s
}

func (s *server) receive(calls []*call) {
	args := make([]int, len(calls))
	for i, c := range calls {
		args[i] = c.Arg
	}
	s.mu.Lock()
	s.groups = append(s.groups, args)
	s.mu.Unlock()
	if s.commit != nil {
		s.commit(calls)
		return
	}
	answer(calls)
}

func answer(calls []*call) {
	time.Sleep(roundTrip)
	for _, c := range calls {
		c.Settle(c.Arg)
	}
}

func (s *server) received() [][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groups
}

// do makes a call, and reports whether it went out alone.
func (s *server) do(ctx context.Context, arg, items, bytes int) (result int, alone bool, err error) {
	c := s.Enter(ctx, arg, items, bytes)
	if c == nil {
		defer s.Exit()
		time.Sleep(roundTrip)
		return arg, true, nil
	}
	result, err = c.Wait()
	return result, false, err
}

// occupy has as many calls under way as may be, until the function that it returns is called.
func (s *server) occupy(t *testing.T, n int) (release func()) {
	t.Helper()
	synctest.Wait() // a group that has just returned has its place for a moment yet
	for range n {
		require.True(t, s.Enter(t.Context(), 0, 1, 1) == nil, "no place is free")
	}
	return func() {
		for range n {
			s.Exit()
		}
	}
}

// wait makes calls with these arguments, one after the other, while others are under way, and
// returns a function that waits for their results.
func (s *server) wait(t *testing.T, args ...int) (results func() []int) {
	t.Helper()
	calls := make([]*call, len(args))
	for i, arg := range args {
		calls[i] = s.Enter(t.Context(), arg, 1, 1)
		require.True(t, calls[i] != nil, "it does not wait")
	}
	return func() []int {
		got := make([]int, len(calls))
		for i, c := range calls {
			result, err := c.Wait()
			require.NoError(t, err)
			got[i] = result
		}
		return got
	}
}

func TestCommitter_WithLittleUnderWayCallsGoOutAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(2, nil)
		start := time.Now()
		for i := range 100 {
			result, alone, err := s.do(t.Context(), i, 1, 1)
			require.NoError(t, err)
			require.True(t, alone)
			require.Equal(t, i, result)
		}
		require.Equal(t, 100*roundTrip, time.Since(start))
		require.Empty(t, s.received())
	})
}

func TestCommitter_WhatComesMeanwhileIsOneGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(2, nil)
		release := s.occupy(t, 2)
		results := s.wait(t, 1, 2, 3)
		synctest.Wait()
		require.Empty(t, s.received(), "a call went out although enough was under way")
		start := time.Now()
		release()
		require.Equal(t, []int{1, 2, 3}, results())
		require.Equal(t, roundTrip, time.Since(start))
		require.Equal(t, [][]int{{1, 2, 3}}, s.received())
		synctest.Wait()
		s.occupy(t, 2)() // the places are free again
	})
}

func TestCommitter_GroupsAreBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sizes [][2]int // items and bytes of each call
		want  [][]int
	}{
		"in items":                  {[][2]int{{4, 1}, {6, 1}, {1, 1}}, [][]int{{0, 1}, {2}}},
		"in bytes":                  {[][2]int{{1, 60}, {1, 40}, {1, 1}}, [][]int{{0, 1}, {2}}},
		"a larger call goes alone":  {[][2]int{{1, 1}, {1, 500}, {1, 1}, {1, 1}}, [][]int{{0}, {1}, {2, 3}}},
		"order comes before size":   {[][2]int{{9, 1}, {9, 1}, {1, 1}}, [][]int{{0}, {1, 2}}},
		"a larger number goes, too": {[][2]int{{50, 1}, {1, 1}}, [][]int{{0}, {1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newServer(1, nil)
				release := s.occupy(t, 1)
				for i, size := range test.sizes {
					require.True(t, s.Enter(t.Context(), i, size[0], size[1]) != nil)
				}
				release()
				synctest.Wait()
				time.Sleep(10 * roundTrip)
				require.Equal(t, test.want, s.received())
			})
		})
	}
}

func TestCommitter_ACallerThatLeavesBeforeIsNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1, nil)
		release := s.occupy(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		leaves := s.Enter(ctx, 1, 1, 1)
		results := s.wait(t, 2)
		cancel()
		start := time.Now()
		_, err := leaves.Wait()
		require.ErrorIs(t, err, groupcommit.ErrWithdrawn)
		require.Zero(t, time.Since(start))
		release()
		require.Equal(t, []int{2}, results())
		require.Equal(t, [][]int{{2}}, s.received())

		release = s.occupy(t, 1) // also if no other waits
		leaves = s.Enter(ctx, 3, 1, 1)
		_, err = leaves.Wait()
		require.ErrorIs(t, err, groupcommit.ErrWithdrawn)
		release()
		synctest.Wait()
		require.Len(t, s.received(), 1)
		s.occupy(t, 1)()
	})
}

func TestCommitter_ACallerThatLeavesAfterItIsSent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takes time.Duration // the group
		want  error
		after time.Duration // the caller has left, or has its result
	}{
		"the result comes within the grace": {grace - time.Millisecond, nil, grace - time.Millisecond},
		"it does not":                       {time.Hour, groupcommit.ErrAbandoned, grace},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				settled := make(chan []bool, 1)
				s := newServer(1, func(calls []*call) {
					time.Sleep(test.takes)
					taken := []bool{}
					for _, c := range calls {
						taken = append(taken, c.Settle(c.Arg))
					}
					settled <- taken
				})
				release := s.occupy(t, 1)
				ctx, cancel := context.WithCancel(t.Context())
				leaves := s.Enter(ctx, 1, 1, 1)
				results := s.wait(t, 2)
				release()
				synctest.Wait()
				cancel()
				start := time.Now()
				result, err := leaves.Wait()
				require.ErrorIs(t, err, test.want)
				require.Equal(t, test.after, time.Since(start))
				if test.want == nil {
					require.Equal(t, 1, result)
				}
				require.Equal(t, []int{2}, results(), "the other's result is its own")
				require.Equal(t, []bool{test.want == nil, true}, <-settled, "whether the caller takes it")
			})
		})
	}
}

func TestCommitter_AHangingGroupHoldsNoOtherForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		s := newServer(2, func(calls []*call) {
			if calls[0].Arg < 10 {
				<-hang
			}
			answer(calls)
		})
		release := s.occupy(t, 2)
		s.wait(t, 1)
		release()
		synctest.Wait()
		start := time.Now()
		require.Equal(t, []int{11, 12}, s.wait(t, 11, 12)())
		require.LessOrEqual(t, time.Since(start), 100*time.Millisecond+roundTrip)
		for i := range 5 { // it does not count any more
			synctest.Wait()
			start = time.Now()
			_, alone, err := s.do(t.Context(), 20+i, 1, 1)
			require.NoError(t, err)
			require.True(t, alone)
			require.Equal(t, roundTrip, time.Since(start))
		}
		exit := s.occupy(t, 2) // which hang too
		synctest.Wait()
		start = time.Now()
		require.Equal(t, []int{30}, s.wait(t, 30)())
		require.LessOrEqual(t, time.Since(start), 100*time.Millisecond+roundTrip)
		for i := range 5 { // nor do they
			synctest.Wait()
			start = time.Now()
			_, alone, err := s.do(t.Context(), 31+i, 1, 1)
			require.NoError(t, err)
			require.True(t, alone)
			require.Equal(t, roundTrip, time.Since(start))
		}
		require.Equal(t, [][]int{{1}, {11, 12}, {30}}, s.received())
		close(hang)
		exit()
		time.Sleep(time.Second)
		release = s.occupy(t, 2) // as many places as before
		results := s.wait(t, 40)
		release()
		require.Equal(t, []int{40}, results())
	})
}

// TestCommitter_AGroupIsUnderWayAlone: beside it no call goes out alone, and no other group,
// unless that is a whole one.
func TestCommitter_AGroupIsUnderWayAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(2, nil)
		release := s.occupy(t, 2)
		first := s.wait(t, 1, 2)
		release()
		synctest.Wait()
		second := s.wait(t, 11, 12, 13, 14, 15, 16, 17, 18, 19)
		synctest.Wait()
		require.Equal(t, [][]int{{1, 2}}, s.received())
		start := time.Now()
		third := s.wait(t, 20, 21, 22) // the first one makes a whole group
		synctest.Wait()
		whole := []int{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}
		require.Equal(t, [][]int{{1, 2}, whole}, s.received())
		require.Equal(t, []int{1, 2}, first())
		require.Equal(t, whole[:9], second())
		require.Equal(t, []int{20, 21, 22}, third())
		require.Equal(t, 2*roundTrip, time.Since(start))
		require.Equal(t, [][]int{{1, 2}, whole, {21, 22}}, s.received())
		synctest.Wait()
		s.occupy(t, 2)() // the places are free again
	})
}

func TestCommitter_ACommitThatEndsItsGoroutineLosesItsGroupOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1, func(calls []*call) {
			if calls[0].Arg == 1 {
				calls[1].Settle(20)
				runtime.Goexit()
			}
			answer(calls)
		})
		release := s.occupy(t, 1)
		first := s.wait(t, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
		second := s.wait(t, 11, 12)
		release()
		require.Equal(t, []int{lost, 20, lost, lost, lost, lost, lost, lost, lost, lost}, first())
		require.Equal(t, []int{11, 12}, second())
		synctest.Wait()
		s.occupy(t, 1)()
	})
}

// TestCommitter_EachCallerHasItsOwnResult has many callers come, leave and come back.
func TestCommitter_EachCallerHasItsOwnResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const callers, times = 300, 20
		var sentTo, tookFrom atomic.Int64 // sums of what was sent for callers that took the result
		s := newServer(2, func(calls []*call) {
			time.Sleep(rand.N(2 * roundTrip))
			for _, c := range calls {
				if c.Settle(c.Arg) {
					sentTo.Add(int64(c.Arg))
				}
			}
		})
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for i := range times {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(200*roundTrip))
					arg := caller*times + i
					result, alone, err := s.do(ctx, arg, 1, rand.N(50))
					cancel()
					if err == nil && result != arg {
						t.Errorf("the caller of %d was given the result of %d", arg, result)
					}
					if err == nil && !alone {
						tookFrom.Add(int64(arg))
					}
				}
			})
		}
		all.Wait()
		synctest.Wait()
		require.Equal(t, sentTo.Load(), tookFrom.Load(), "a result had no caller that took it")
		seen := map[int]bool{}
		for _, group := range s.received() {
			require.LessOrEqual(t, len(group), 10)
			for _, arg := range group {
				require.False(t, seen[arg], "sent twice")
				seen[arg] = true
			}
		}
		s.occupy(t, 2)()
	})
}

// TestCommitter_NoCallerIsOvertaken has a few greedy callers beside one that comes once.
func TestCommitter_NoCallerIsOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1, nil)
		over := make(chan struct{})
		var greedy sync.WaitGroup
		for caller := range 50 {
			greedy.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
						_, _, _ = s.do(t.Context(), caller, 1, 1)
					}
				}
			})
		}
		time.Sleep(100 * roundTrip)
		for range 100 {
			start := time.Now()
			_, _, err := s.do(t.Context(), 1000, 1, 1)
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(start), 7*roundTrip, "5 groups wait before it at most, and one is under way")
		}
		close(over)
		greedy.Wait()
	})
}
