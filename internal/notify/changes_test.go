package notify

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestNotifier_ATurnReadsNoSubscriptionThatHasNotChanged: those are nil here, so that a turn that
// reads one panics.
func TestNotifier_ATurnReadsNoSubscriptionThatHasNotChanged(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		s.Join("kept", nil)
		idle := s.Join("idle", nil)
		synctest.Wait()
		s.Leave("idle", idle)
		synctest.Wait() // the loop pauses from here on

		r := s.onlyRoute()
		for i := range 1000 {
			r.subscriptions[fmt.Sprint("unchanged", i)] = nil
		}
		defer maps.DeleteFunc(r.subscriptions, func(_ string, s *subscription) bool { return s == nil })
		s.subscriptions["new"] = &subscription{listeners: []*Listener{{}}}
		r.add("new", s.subscriptions["new"])
		r.wanted = append(r.wanted, "kept", "gone", "new") // asked for, not there any more, and twice
		var p plan
		require.NotPanics(t, func() { p = r.plan(time.Now().Add(2 * linger)) })
		require.Equal(t, []string{"new"}, p.subscribe)
		require.Equal(t, []string{"idle"}, p.unsubscribe)
		require.NotPanics(t, func() { p = r.plan(time.Now().Add(3 * linger)) })
		require.Empty(t, p.subscribe)
		require.Empty(t, p.unsubscribe)
	})
}

// TestNotifier_AMillionShortWaitsLeaveNothingBehind: one entry at most while they go on, with turns
// between them, and none after them.
func TestNotifier_AMillionShortWaitsLeaveNothingBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		l := s.Join("a", nil)
		s.Join("other", nil)
		for range 1000 {
			for range 1000 {
				s.Leave("a", l)
				s.join("a", l)
			}
			time.Sleep(20 * time.Millisecond)
			synctest.Wait()
			wanted, idle := s.toLookAt()
			require.Zero(t, wanted)
			require.LessOrEqual(t, idle, 1)
		}
		require.Len(t, s.at("SUBSCRIBE a"), 1)
		require.Empty(t, s.at("UNSUBSCRIBE a"))
		s.Leave("a", l)
		time.Sleep(2 * linger)
		synctest.Wait()
		_, idle := s.toLookAt()
		require.Zero(t, idle)
		require.Equal(t, []string{"other"}, s.m.PubSubChannels("*"))
	})
}

// toLookAt returns how many channels the next turns look at.
func (s *setup) toLookAt() (wanted, idle int) {
	s.Notifier.mu.Lock()
	defer s.Notifier.mu.Unlock()
	for _, r := range s.routes {
		wanted += len(r.wanted)
		idle += r.idle.Len()
	}
	return wanted, idle
}

// TestNotifier_ManyIdleChannelsEnd, each in its time, and the memory for them is given back.
func TestNotifier_ManyIdleChannelsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		const n = 1000
		s.Join("other", nil)
		for i := range n {
			l := s.Join(fmt.Sprint(i), nil)
			s.Leave(fmt.Sprint(i), l)
			s.Leave(fmt.Sprint(i), l) // which changes nothing
			time.Sleep(time.Millisecond)
		}
		time.Sleep(linger - 600*time.Millisecond + time.Millisecond/2)
		synctest.Wait()
		require.Len(t, s.m.PubSubChannels("*"), 599+1, "401 have lingered, and no more")
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"other"}, s.m.PubSubChannels("*"))
		_, idle := s.toLookAt()
		require.Zero(t, idle)
		for _, peak := range []int{s.onlyRoute().peak, s.peak} {
			require.Positive(t, peak)
			require.Less(t, peak, n/10)
		}
	})
}

// TestNotifier_ForbiddenChannelsAmongMany: they are tried again, the others are not.
func TestNotifier_ForbiddenChannelsAmongMany(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		const n = 300
		name := func(i int) string { return fmt.Sprint("c", i) }
		listeners := make([]*Listener, n)
		s.set(func() {
			for i := 0; i < n; i += 3 {
				s.denied[name(i)] = true
			}
		})
		for i := range n {
			listeners[i] = s.Join(name(i), nil)
		}
		time.Sleep(retryDeniedAfter + time.Second)
		for i, l := range listeners {
			require.Equal(t, i%3 != 0, notified(l), name(i))
			require.Len(t, s.at("SUBSCRIBE "+name(i)), map[bool]int{true: 2, false: 1}[i%3 == 0], name(i))
		}
		s.set(func() { clear(s.denied) })
		time.Sleep(2 * retryDeniedAfter)
		for i, l := range listeners {
			require.Equal(t, i%3 == 0, notified(l), name(i))
			require.True(t, s.Mark(name(i)).Confirmed, name(i))
			require.Len(t, s.at("SUBSCRIBE "+name(i)), map[bool]int{true: 3, false: 1}[i%3 == 0], name(i))
		}
		require.Len(t, s.dialled(), 1)
	})
}

// TestNotifier_AnotherConnectionHasThemAll: those in use, those that linger, and those that came
// meanwhile.
func TestNotifier_AnotherConnectionHasThemAll(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		const n = 300
		name := func(i int) string { return fmt.Sprint("c", i) }
		listeners := make([]*Listener, n)
		for i := range n {
			listeners[i] = s.Join(name(i), nil)
		}
		synctest.Wait()
		s.Leave(name(0), listeners[0])
		s.faults.HalfOpen()
		s.RequestPing(name(1))
		s.Join("later", nil)
		time.Sleep(silence + time.Second)
		synctest.Wait()
		require.Len(t, s.dialled(), 2)
		for i := range n {
			require.Len(t, s.at("SUBSCRIBE "+name(i)), 2, name(i))
		}
		require.True(t, s.Mark("later").Confirmed)
		require.Len(t, s.m.PubSubChannels("*"), n+1)
		time.Sleep(2 * linger)
		synctest.Wait()
		require.Len(t, s.m.PubSubChannels("*"), n, "what lingers ends on the new connection")
		require.NotContains(t, s.m.PubSubChannels("*"), name(0))
	})
}

// movable is a client that says which of two servers keeps a channel, as a Cluster's does. Both
// are the same here.
type movable struct {
	*redis.Client
	servers [2]*redis.Client
	at      *atomic.Int32
}

func (m movable) MasterForKey(context.Context, string) (*redis.Client, error) {
	return m.servers[m.at.Load()], nil
}

// TestNotifier_AChannelThatMovesKeepsItsPromises: it is subscribed on the other route, to and fro,
// and one without a listener ends there.
func TestNotifier_AChannelThatMovesKeepsItsPromises(t *testing.T) {
	at := new(atomic.Int32)
	client := func(o *redis.Options) redis.UniversalClient {
		return movable{redis.NewClient(o), [2]*redis.Client{{}, {}}, at}
	}
	inBubbleWith(t, client, func(t *testing.T, s *setup) {
		used, idle := s.Join("used", nil), s.Join("idle", nil)
		require.True(t, notified(used))
		require.True(t, notified(idle))
		s.Leave("idle", idle)
		for i := range 4 {
			at.Store(int32(1 - i%2))
			s.RequestPing("used") // which asks where it belongs
			time.Sleep(time.Second)
			require.True(t, notified(used), "it is subscribed anew")
			s.m.Publish("used", "")
			require.True(t, notified(used))
			require.Len(t, s.m.PubSubChannels("*"), 2)
			wanted, _ := s.toLookAt()
			require.Zero(t, wanted)
		}
		time.Sleep(2 * linger)
		synctest.Wait()
		require.Equal(t, []string{"used"}, s.m.PubSubChannels("*"))
		_, left := s.toLookAt()
		require.Zero(t, left)
		s.Leave("used", used)
		time.Sleep(2 * linger)
		require.True(t, s.isOver(t))
	})
}

// TestNotifier_OnAClusterNoConnectionIsRenewedForAnAnswer: that says itself where a channel belongs, and
// a script may have run elsewhere while its slot moves. The connection is tested.
func TestNotifier_OnAClusterNoConnectionIsRenewedForAnAnswer(t *testing.T) {
	client := func(o *redis.Options) redis.UniversalClient {
		return movable{redis.NewClient(o), [2]*redis.Client{{}, {}}, new(atomic.Int32)}
	}
	inBubbleWith(t, client, func(t *testing.T, s *setup) {
		l := s.Join("a", nil)
		require.True(t, notified(l))
		s.Renew("a", s.Mark("a"))
		time.Sleep(time.Minute)
		require.Len(t, s.at("PING "), 1)
		require.Len(t, s.dialled(), 1)
	})
}
