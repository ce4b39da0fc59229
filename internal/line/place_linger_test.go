package line_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/line"
)

// TestPlace_SaysHowLongToWaitForIt: three of its round trips, within bounds.
func TestPlace_SaysHowLongToWaitForIt(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		s.Listen(wake)
		for trip, want := range map[time.Duration]string{
			0: "50", time.Millisecond: "50", 17 * time.Millisecond: "51", 100 * time.Millisecond: "300", 200 * time.Millisecond: "500", time.Hour: "500",
		} {
			s.Renumber()
			member, _ := s.Ask(trip, "")
			require.Regexp(t, ":"+want+"$", member, trip)
			again, _ := s.Ask(time.Minute, "")
			require.Equal(t, member, again, "it stays as it is")
		}
		s.Leave()
	})
}

// TestPlace_KnowsThatItIsWoken, and since when, until it asks, or has another member.
func TestPlace_KnowsThatItIsWoken(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		member := s.ask(3, "1")
		require.Zero(t, s.Woken())
		s.tell(member, "5000")
		require.Zero(t, s.Woken(), "it is the first")
		at := time.Now()
		s.tell(member, member)
		time.Sleep(time.Second)
		s.tell(member, member)
		require.Equal(t, at, s.Woken())
		s.Ask(0, "")
		require.Zero(t, s.Woken())
		s.tell(member, member)
		s.Renumber()
		require.Zero(t, s.Woken())
		s.Leave()
	})
}

// TestPlace_LingersForTheNextCaller, which goes on with the wait: it need not ask, and polls when
// the one before it would have.
func TestPlace_LingersForTheNextCaller(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		left := func(string) { require.Fail(t, "it leaves") }
		member := s.ask(0, "1")
		polls := time.Now().Add(5*time.Second + time.Millisecond)
		for range 20 {
			require.ErrorIs(t, s.Wait(t.Context(), nil, time.Now().Add(20*time.Millisecond), 5*time.Second, time.Hour), line.ErrTooLate)
			s.Linger(left)
			time.Sleep(9 * time.Millisecond)
			require.True(t, s.Resume())
			require.True(t, s.InLine())
			require.Equal(t, member, s.Member())
		}
		s.wait(time.Hour, time.Hour)
		require.Equal(t, polls, time.Now())

		s.ask(0, "1")
		s.tell(member, member)
		require.Zero(t, s.wait(time.Hour, time.Hour))
		require.Zero(t, s.wait(time.Hour, time.Hour), "the next caller learns that it is woken")
		s.Leave()
	})
}

// TestPlace_IsToldThatItIsFirstWithoutACaller: the next caller polls when the lock is free by
// itself.
func TestPlace_IsToldThatItIsFirstWithoutACaller(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		member := s.ask(3, "1")
		require.ErrorIs(t, s.Wait(t.Context(), nil, time.Now(), time.Hour, time.Hour), line.ErrTooLate)
		s.Linger(func(string) { require.Fail(t, "it leaves") })
		s.tell(member, "50")
		require.True(t, s.Resume())
		require.LessOrEqual(t, s.wait(time.Hour, time.Hour), 51*time.Millisecond)
		s.Leave()
	})
}

// TestPlace_LeavesWhenNoneComes: in a while, or as soon as it is woken; at once if it is not in
// line, as far as it knows.
func TestPlace_LeavesWhenNoneComes(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		s.Linger(func(string) { require.Fail(t, "it does not wait") })
		for name, test := range map[string]struct {
			ahead         int
			before, after bool // it is woken
			leaves        time.Duration
		}{
			"in line":      {3, false, false, 10 * time.Millisecond},
			"woken":        {0, true, false, 0},
			"woken later":  {0, false, true, time.Millisecond},
			"not answered": {-2, false, false, 0},
			"not in line":  {-1, false, false, 0},
		} {
			start, left := time.Now(), make(chan string, 1)
			s.Listen(wake)
			member, _ := s.Ask(0, "")
			synctest.Wait()
			if test.ahead > -2 {
				s.Stands(test.ahead, "1")
			}
			if test.before {
				s.tell(member, member)
			}
			s.Linger(func(member string) { left <- member })
			if test.after {
				time.Sleep(time.Millisecond)
				s.tell(member, member)
			}
			require.Equal(t, member, <-left, name)
			require.Equal(t, test.leaves, time.Since(start), name)
			require.False(t, s.Resume(), name)
			require.Empty(t, s.Member(), name)
			time.Sleep(6 * time.Second)
			require.Empty(t, s.m.PubSubChannels("*"), name)
		}
	})
}
