package notify

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestNotifier_ADeadConnectionIsReplaced: one that is half open, within two seconds of a
// RequestPing, and the listener is notified of the new one.
func TestNotifier_ADeadConnectionIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		l := s.Join("a", nil)
		require.True(t, notified(l))
		s.faults.HalfOpen()
		time.Sleep(time.Hour)
		require.Len(t, s.dialled(), 1, "it is not noticed by itself")
		s.RequestPing("a")
		s.RequestPing("a")
		time.Sleep(2*time.Second - time.Millisecond)
		require.Len(t, s.dialled(), 1, "it may still answer")
		require.Equal(t, []time.Duration{time.Hour}, s.at("PING "))
		time.Sleep(time.Millisecond + 9*time.Millisecond) // and the first pause
		require.True(t, notified(l))
		require.True(t, s.Mark("a").Confirmed)
		require.Len(t, s.dialled(), 2)
		s.m.Publish("a", "")
		require.True(t, notified(l))
	})
}

// TestNotifier_RenewsAConnectionThatLeadsElsewhere: not again for what was seen of the one before, and
// not at each poll.
func TestNotifier_RenewsAConnectionThatLeadsElsewhere(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		s.Renew("a", Mark{})
		require.True(t, s.isOver(t), "there is no connection")
		l := s.Join("a", nil)
		require.True(t, notified(l))
		first := s.Mark("a")
		s.Renew("a", Mark{}) // it was not confirmed then
		time.Sleep(time.Second)
		require.Len(t, s.dialled(), 1)
		s.Renew("a", first)
		time.Sleep(time.Second)
		require.Len(t, s.dialled(), 2)
		require.True(t, notified(l))
		time.Sleep(renewAgain)
		s.Renew("a", first)
		time.Sleep(time.Second)
		require.Len(t, s.dialled(), 2)
		for range 31 {
			s.Renew("a", s.Mark("a"))
			time.Sleep(time.Second)
		}
		require.Len(t, s.dialled(), 6, "each ten seconds, from the first on")
		require.Len(t, s.m.PubSubChannels("*"), 1)
	})
}

func TestNotifier_APingThatIsAnsweredChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		s.RequestPing("a")
		require.True(t, s.isOver(t), "there is no connection to test")
		l := s.Join("a", nil)
		require.True(t, notified(l))
		for i := range 3 {
			s.RequestPing("a")
			time.Sleep(time.Minute)
			require.Len(t, s.at("PING "), i+1)
		}
		require.False(t, notified(l))
		require.Len(t, s.dialled(), 1)
	})
}

// TestNotifier_ASubscriptionWithoutAnAnswerIsADeadConnection: nothing else is sent for the
// first seconds.
func TestNotifier_ASubscriptionWithoutAnAnswerIsADeadConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		require.True(t, notified(s.Join("a", nil)))
		s.faults.HalfOpen()
		b := s.Join("b", nil)
		time.Sleep(2*time.Second - time.Millisecond)
		require.False(t, notified(b))
		time.Sleep(10 * time.Millisecond)
		require.True(t, notified(b))
		require.Len(t, s.dialled(), 2)
	})
}

// TestNotifier_AClosedConnectionIsReplacedSoon: it has worked, so the pause is short.
func TestNotifier_AClosedConnectionIsReplacedSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		l := s.Join("a", nil)
		require.True(t, notified(l))
		for range 20 {
			s.set(func() { s.hangUps = 1 })
			s.RequestPing("a")
			time.Sleep(9 * time.Millisecond)
			require.True(t, notified(l), "of the new subscription")
			require.True(t, s.Mark("a").Confirmed)
		}
	})
}

// TestNotifier_PausesGrow when no connection ever works: one that cannot be made, and one
// that is closed at once.
func TestNotifier_PausesGrow(t *testing.T) {
	for name, spoil := range map[string]func(s *setup){
		"cannot be made": func(s *setup) { s.dialErr = errors.New("connection refused") },
		"closed at once": func(s *setup) { s.hangUps = math.MaxInt },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *setup) {
				s.set(func() { spoil(s) })
				l := s.Join("a", nil)
				time.Sleep(time.Minute)
				dials := len(s.dialled())
				require.Less(t, dials, 320, "a quarter of a second apart, on average") // 245 give or take 10
				require.Greater(t, dials, 60*2-1, "half a second at most, and what it takes")
				s.set(func() { s.dialErr, s.hangUps = nil, 0 })
				time.Sleep(time.Second)
				require.True(t, notified(l))
			})
		})
	}
}

// TestNotifier_AForbiddenChannelIsTriedEveryTenSeconds on the same connection, which serves
// the other channels meanwhile.
func TestNotifier_AForbiddenChannelIsTriedEveryTenSeconds(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		s.set(func() { s.denied["a"] = true })
		a, b := s.Join("a", nil), s.Join("b", nil)
		require.True(t, notified(b))
		time.Sleep(35 * time.Second)
		require.False(t, notified(a))
		require.False(t, s.Mark("a").Confirmed)
		require.Equal(t, []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second}, s.at("SUBSCRIBE a"))
		s.m.Publish("b", "")
		require.True(t, notified(b))
		s.set(func() { s.denied["a"] = false })
		time.Sleep(5 * time.Second)
		require.True(t, notified(a))
		require.False(t, notified(b))
		require.Len(t, s.dialled(), 1)
		time.Sleep(time.Minute)
		require.Len(t, s.at("SUBSCRIBE a"), 5, "it is confirmed")
	})
}

// TestNotifier_OnlyForbiddenChannels: a refusal is an answer like any other.
func TestNotifier_OnlyForbiddenChannels(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		s.set(func() { s.denied["a"] = true })
		l := s.Join("a", nil)
		time.Sleep(time.Hour)
		require.False(t, notified(l))
		require.Len(t, s.dialled(), 1)
		require.Len(t, s.at("SUBSCRIBE a"), 361)
		s.Leave("a", l)
		time.Sleep(5 * time.Second)
		require.True(t, s.isOver(t))
	})
}

// TestNotifier_AServerWithoutShardedChannels is a Cluster of Redis 6, which knows neither
// SSUBSCRIBE nor SUNSUBSCRIBE, as miniredis: the same connection goes on classically, also when it
// is made anew and when a subscription ends.
func TestNotifier_AServerWithoutShardedChannels(t *testing.T) {
	cluster := func(o *redis.Options) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{o.Addr}, Dialer: o.Dialer, DialerRetries: o.DialerRetries, MaintNotificationsConfig: o.MaintNotificationsConfig,
		})
	}
	inBubbleWith(t, cluster, func(t *testing.T, s *setup) {
		a, b := s.Join("a", nil), s.Join("b", nil)
		require.True(t, notified(a), "it is not subscribed")
		require.True(t, notified(b), "it is not subscribed")
		s.m.Publish("a", "")
		require.True(t, notified(a))
		dials := len(s.dialled())

		s.Leave("b", b)
		time.Sleep(time.Minute)
		require.Len(t, s.at("UNSUBSCRIBE b"), 1)
		require.Len(t, s.at("SUBSCRIBE a"), 1, "it was made anew")
		require.Len(t, s.dialled(), dials, "it was made anew")

		s.set(func() { s.hangUps = 1 })
		s.RequestPing("a")
		time.Sleep(time.Second)
		require.True(t, notified(a), "it is not subscribed again")
		s.m.Publish("a", "")
		require.True(t, notified(a))
	})
}
