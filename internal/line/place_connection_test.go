package line_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
)

func TestPlace_ASubscriptionThatIsElsewhere(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		s.Listen(wake)
		s.Ask(0, "")
		s.Stands(-2, "") // it was not confirmed yet
		require.Zero(t, s.wait(time.Hour, time.Hour), "it is now")
		s.ask(-1, "") // it may be denied
		require.GreaterOrEqual(t, s.wait(2*time.Hour, time.Hour), time.Hour/2)
		require.Equal(t, 1, s.connected())
		s.ask(-2, "")
		require.False(t, s.InLine())
		require.Less(t, s.wait(2*time.Hour, time.Hour), time.Second, "it may join now")
		require.Equal(t, 2, s.connected())
	})
}

func TestPlace_AsksAgainAfterAReconnect(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		for _, ahead := range []int{0, 3, -1} {
			s.ask(ahead, "1")
			s.wait(time.Hour, time.Hour) // the first poll, whose time is drawn
			s.ask(ahead, "1")
			time.AfterFunc(5*time.Second, s.cut)
			took := s.wait(time.Hour, time.Hour)
			require.GreaterOrEqual(t, took, 5*time.Second)
			require.Less(t, took, 6*time.Second)
			s.ask(ahead, "1")
			require.GreaterOrEqual(t, s.wait(time.Hour, time.Hour), 12*time.Second)
			s.Leave()
		}
	})
}

func TestPlace_LeavesItsChannel(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		require.Empty(t, s.Leave(), "it has none")
		require.False(t, s.Resume())
		for _, served := range []bool{false, true} {
			member := s.ask(3, "1")
			s.Listen(wake) // it does so already
			require.True(t, s.Resume())
			require.Equal(t, []string{channel(member)}, s.m.PubSubChannels("*"))
			if served {
				s.Served()
			} else {
				require.Equal(t, member, s.Leave())
			}
			require.False(t, s.Resume())
			require.False(t, s.InLine())
			require.Empty(t, s.Member())
			require.Empty(t, s.Leave())
			time.Sleep(6 * time.Second)
			require.Empty(t, s.m.PubSubChannels("*"))
		}
	})
}

func TestPlace_TestsItsConnection(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		member := s.ask(3, "1")
		time.AfterFunc(time.Millisecond, func() { s.m.Publish(channel(member), member) })
		s.wait(time.Hour, time.Hour)
		s.ask(0, "1")
		time.AfterFunc(time.Millisecond, func() { s.m.Publish(channel(member), member) })
		s.wait(time.Hour, time.Hour)
		s.Served()
		require.Zero(t, s.pinged(), "it was told")

		s.ask(3, "1")
		s.wait(time.Hour, time.Second)
		s.ask(2, "1")
		s.wait(time.Hour, time.Second)
		require.Zero(t, s.pinged(), "there was nothing to tell")
		s.ask(0, "1")
		require.Equal(t, 1, s.pinged(), "it is the first")
		s.wait(time.Hour, time.Second)
		s.ask(0, "1")
		require.Equal(t, 1, s.pinged(), "it knew")
		s.wait(time.Hour, time.Second)
		s.Served()
		require.Equal(t, 2, s.pinged(), "the lock was free")
	})
}

func clusterClient(_ *testing.T, dial dialer) redis.UniversalClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:6379"}, Dialer: dial,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

func TestPlace_SaysHowItListens(t *testing.T) {
	standWith(t, clusterClient, func(*server.Peer, string, ...string) bool { return false }, func(t *testing.T, s *standing) {
		sharded := s.ask(3, "7")
		require.Regexp(t, `^\*[A-Z2-7]{12}:1:50$`, sharded)
		member, score := s.Ask(0, "")
		require.Regexp(t, `^[A-Z2-7]{12}:2:50$`, member)
		require.Equal(t, "7", score)
		require.Equal(t, channel(sharded), channel(member))
		s.Stands(0, "7")
		time.AfterFunc(time.Second, func() { s.m.Publish(channel(member), member) })
		require.Equal(t, time.Second, s.wait(time.Hour, time.Hour))
		s.Leave()
	})
}

func TestPlace_IsWokenOnAShardedChannel(t *testing.T) {
	confirm := func(c *server.Peer, command string, args ...string) bool {
		if command != "SSUBSCRIBE" {
			return command == "SUNSUBSCRIBE"
		}
		c.Block(func(w *server.Writer) {
			w.WritePushLen(3)
			w.WriteBulk("ssubscribe")
			w.WriteBulk(args[0])
			w.WriteInt(1)
		})
		return true
	}
	standWith(t, clusterClient, confirm, func(t *testing.T, s *standing) {
		member := s.ask(0, "7")
		again, _ := s.Ask(0, "")
		require.Equal(t, member, again)
		require.Regexp(t, `^\*[A-Z2-7]{12}:1:50$`, member)
		s.Stands(0, "7")
		time.AfterFunc(time.Second, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.peer.Block(func(w *server.Writer) {
				w.WritePushLen(3)
				w.WriteBulk("smessage")
				w.WriteBulk(channel(member))
				w.WriteBulk(member)
			})
			s.peer.Flush()
		})
		require.Equal(t, time.Second, s.wait(time.Hour, time.Hour))
		s.Leave()
	})
}
