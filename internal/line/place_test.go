package line_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/line"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/systest"
)

const wake = "{Lock:a}:wake"

// standing is a process with a place in the line of one lock, on a server that a test speaks for.
type standing struct {
	*testing.T
	*line.Place
	m       *miniredis.Miniredis
	process *line.Process

	mu    sync.Mutex // guards what follows
	conns []net.Conn
	pings int
	peer  *server.Peer // that has subscribed by SSUBSCRIBE
}

// stand runs a test of a place in a bubble.
func stand(t *testing.T, test func(t *testing.T, s *standing)) {
	t.Helper()
	client := func(_ *testing.T, dial dialer) redis.UniversalClient { return systest.BubbleClient(t, dial) }
	standWith(t, client, func(*server.Peer, string, ...string) bool { return false }, test)
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// standWith is stand with a client of another kind, and a server that answers some commands
// otherwise.
func standWith(t *testing.T, client func(*testing.T, dialer) redis.UniversalClient, answers server.Hook, test func(t *testing.T, s *standing)) {
	t.Helper()
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		s := &standing{T: t, Place: new(line.Place), m: m}
		dial := systest.BubbleDialer(m)
		rdb := client(t, func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.conns = append(s.conns, c)
			return c, err
		})
		defer func() { require.NoError(t, rdb.Close()) }()
		first, err := m.Dial() // which starts the server
		require.NoError(t, err)
		require.NoError(t, first.Close())
		m.Server().SetPreHook(func(c *server.Peer, command string, args ...string) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			if command == "PING" {
				s.pings++
			}
			if command == "SSUBSCRIBE" {
				s.peer = c
			}
			return answers(c, command, args...)
		})
		n := notify.New(rdb)
		defer n.Close(context.Background())
		s.process = line.NewProcess(n)
		s.Init(s.process)
		test(t, s)
	})
}

// cut ends all connections.
func (s *standing) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
}

// connected returns how many connections there have been.
func (s *standing) connected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *standing) pinged() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pings
}

// ask has the server asked, which answers that so many are before the process.
func (s *standing) ask(ahead int, score string) (member string) {
	s.Helper()
	s.Listen(wake)
	member, _ = s.Ask(0, "")
	synctest.Wait() // it is subscribed
	s.Stands(ahead, score)
	return member
}

// channel is that on which the process of a member is woken.
func channel(member string) string {
	process, _, _ := strings.Cut(strings.TrimPrefix(member, "*"), ":")
	return wake + ":" + process
}

// tell publishes a message for the process of a member.
func (s *standing) tell(member, message string) {
	s.Helper()
	require.Equal(s, 1, s.m.Publish(channel(member), message), "it does not listen")
	synctest.Wait()
}

// askAndWait has the server asked, as ask does, and waits.
func (s *standing) askAndWait(ahead int, left, retry time.Duration) time.Duration {
	s.Helper()
	s.ask(ahead, "1")
	return s.wait(left, retry)
}

// wait waits behind a holder that has the lock for left, and returns how long that took.
func (s *standing) wait(left, retry time.Duration) time.Duration {
	s.Helper()
	start := time.Now()
	require.NoError(s, s.Wait(s.Context(), nil, time.Time{}, left, retry))
	return time.Since(start)
}

// TestPlace_TheFurtherBehindTheRarerItPolls: the time of its first poll is drawn, so that those who
// join at the same time do not poll at the same time. From then on it keeps the interval.
func TestPlace_TheFurtherBehindTheRarerItPolls(t *testing.T) {
	for name, test := range map[string]struct {
		ahead           int
		retry, interval time.Duration
	}{
		"second":              {1, 100 * time.Millisecond, 100 * time.Millisecond},
		"fifth":               {4, 100 * time.Millisecond, 100 * time.Millisecond},
		"sixth":               {5, 100 * time.Millisecond, 125 * time.Millisecond},
		"hundredth":           {100, 100 * time.Millisecond, 2500 * time.Millisecond},
		"thousandth":          {1000, 100 * time.Millisecond, 10 * time.Second},
		"polls rarely anyway": {3, 20 * time.Second, 20 * time.Second},
		"keeps the line":      {3, time.Hour, 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			stand(t, func(t *testing.T, s *standing) {
				const n = 500
				var quarters [4]int
				for range n {
					s.ask(test.ahead, "1")
					first := s.wait(time.Hour, test.retry)
					require.LessOrEqual(t, first, test.interval)
					quarters[min(4*first/test.interval, 3)]++
					s.ask(test.ahead, "1")
					require.Equal(t, test.interval, s.wait(time.Millisecond, test.retry), "also when the holder's TTL ends")
					s.Leave()
				}
				for _, n := range quarters { // of 125 give or take 10
					require.Greater(t, n, 60, quarters)
				}
			})
		})
	}
}

// TestPlace_TheFirstPollsWhenTheHoldersTTLEnds, and not before: unless that is later than its retry
// interval.
func TestPlace_TheFirstPollsWhenTheHoldersTTLEnds(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		s.ask(0, "1")
		require.Equal(t, 301*time.Millisecond, s.wait(300*time.Millisecond, time.Hour))
		require.Equal(t, time.Millisecond, s.askAndWait(0, 0, time.Hour))
		require.Zero(t, s.askAndWait(0, -time.Second, time.Hour))
		for range 100 {
			took := s.askAndWait(0, time.Hour, time.Second)
			require.GreaterOrEqual(t, took, time.Second/2)
			require.LessOrEqual(t, took, time.Second)
		}
		require.LessOrEqual(t, s.askAndWait(0, time.Hour, time.Hour), 25*time.Second, "the line would end")
	})
}

// TestPlace_WithoutOneItPolls as the first does, and has no line to keep. It asks again as soon as
// it is subscribed: what came before that is lost, and it may join now.
func TestPlace_WithoutOneItPolls(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		s.Listen(wake)
		s.Ask(0, "")
		s.Stands(-1, "")
		require.Zero(t, s.wait(time.Hour, time.Hour), "it is subscribed now")
		s.ask(-1, "")
		require.False(t, s.InLine())
		require.GreaterOrEqual(t, s.wait(2*time.Hour, time.Hour), time.Hour/2)
		require.Equal(t, 301*time.Millisecond, s.askAndWait(-1, 300*time.Millisecond, time.Hour))
	})
}

// TestPlace_ASubscriptionThatIsElsewhere is made anew, once the server has not known it.
// TestPlace_IsSubscribedInLine: its subscription may be confirmed only after the reply that says
// that it is in line. It is no reason to ask again.
func TestPlace_IsSubscribedInLine(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		s.Listen(wake)
		s.Ask(0, "")
		s.Stands(0, "1")
		require.True(t, s.InLine())
		require.Equal(t, 10*time.Second+time.Millisecond, s.wait(10*time.Second, time.Hour))
	})
}

// TestPlace_IsWoken at once, be it before the reply to its request comes, before it waits or while
// it does; not by what came before the request, which finds out by itself.
func TestPlace_IsWoken(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		member := s.ask(0, "1")
		time.AfterFunc(time.Second, func() { s.m.Publish(channel(member), member) })
		require.Equal(t, time.Second, s.wait(time.Hour, time.Hour))

		s.Ask(0, "")
		s.tell(member, member)
		s.Stands(3, "1")
		require.Zero(t, s.wait(time.Hour, 20*time.Second), "before the reply")

		s.ask(3, "1")
		s.tell(member, member)
		require.Zero(t, s.wait(time.Hour, 20*time.Second), "before it waits")

		s.tell(member, member)
		s.ask(0, "1")
		require.GreaterOrEqual(t, s.wait(time.Hour, time.Hour), 12*time.Second, "before the request")
	})
}

// TestPlace_IsNotWokenByOthers: by a message for an earlier member of its own, or by what this
// library does not publish.
func TestPlace_IsNotWokenByOthers(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		earlier := s.ask(0, "1")
		s.Renumber()
		member := s.ask(0, "1")
		require.NotEqual(t, earlier, member)
		for _, message := range []string{earlier, "", "foreign", member + "0", "1e3", "99999999999999999999"} {
			time.AfterFunc(time.Second, func() { s.m.Publish(channel(member), message) })
			require.GreaterOrEqual(t, s.wait(time.Hour, time.Hour), 12*time.Second, message)
			s.ask(0, "1")
		}
		time.AfterFunc(time.Second, func() { s.m.Publish(channel(member), earlier) })
		time.AfterFunc(2*time.Second, func() { s.m.Publish(channel(member), member) })
		require.Equal(t, 2*time.Second, s.wait(time.Hour, time.Hour), "an earlier one's takes nothing from it")
	})
}

// TestPlace_IsToldThatItIsFirst, and when the holder's TTL ends: before the reply to its request,
// which knows of others before it, or later. What came before the request is over: it may not be
// the first any more.
func TestPlace_IsToldThatItIsFirst(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		const retry = 20 * time.Second
		member := s.ask(3, "1")
		s.wait(time.Hour, retry) // the first poll, whose time is drawn

		s.Ask(0, "")
		s.tell(member, "5000")
		time.Sleep(time.Second)
		s.Stands(3, "1")
		require.Equal(t, 4001*time.Millisecond, s.wait(time.Hour, retry), "before the reply")

		s.ask(3, "1")
		time.AfterFunc(time.Second, func() { s.m.Publish(channel(member), "5000") })
		require.Equal(t, 6001*time.Millisecond, s.wait(time.Hour, retry), "while it waits")

		s.ask(3, "1")
		time.AfterFunc(time.Second, func() { s.m.Publish(channel(member), "5000") })
		time.AfterFunc(2*time.Second, func() { s.m.Publish(channel(member), "0") })
		require.Equal(t, 2001*time.Millisecond, s.wait(time.Hour, retry), "twice")

		s.ask(3, "1")
		time.AfterFunc(time.Second, func() { s.m.Publish(channel(member), "9000000000000000000") })
		took := s.wait(time.Hour, retry)
		require.GreaterOrEqual(t, took, time.Second+retry/2, "as the first polls")
		require.LessOrEqual(t, took, time.Second+retry)

		s.tell(member, "5000")
		s.ask(3, "1")
		require.Equal(t, retry, s.wait(time.Hour, retry), "before the request")
	})
}

// TestPlace_AnotherEntryKeepsTheScore: after a request that may be carried out late, or whose
// member the janitor takes out of the line.
func TestPlace_AnotherEntryKeepsTheScore(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		s.Listen(wake)
		require.Empty(t, s.Member())
		seen := map[string]bool{}
		for i := range 3 {
			member, score := s.Ask(0, "")
			require.Equal(t, member, s.Member())
			require.False(t, seen[member], member)
			seen[member] = true
			require.Equal(t, []string{"", "7", "7"}[i], score)
			again, _ := s.Ask(0, "")
			require.Equal(t, member, again, "without a reason")
			s.Stands(5, "7")
			s.Stands(-1, "") // it was lost, and the process joins at its old place
			require.False(t, s.InLine())
			s.Renumber()
			require.Empty(t, s.Member())
		}
		s.Leave()
		s.Listen(wake)
		member, score := s.Ask(0, "")
		require.Empty(t, score, "a new wait")
		require.False(t, seen[member], "a late leave would take it out")

		other := new(line.Place)
		other.Init(s.process)
		other.Listen("{Lock:b}:wake")
		defer other.Leave()
		member, _ = other.Ask(0, "")
		require.False(t, seen[member])
		require.NotEqual(t, s.Member(), member)
	})
}

// TestPlace_AsksAgainAfterAReconnect, once: what woke it may have been lost.
// TestPlace_LeavesItsChannel when its wait ends: five seconds later, so that a loop of short waits
// subscribes once.
// TestPlace_TestsItsConnection where it finds by a poll what it should have been told of: that the
// lock is free, or that it is the first.
// TestPlace_WaitEndsInTime for its caller: it is too late then for what takes a round trip.
func TestPlace_WaitEndsInTime(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		member := s.ask(3, "1")
		start := time.Now()
		time.AfterFunc(time.Millisecond, func() { s.m.Publish(channel(member), "60000") })
		require.ErrorIs(t, s.Wait(t.Context(), nil, start.Add(5*time.Millisecond), time.Hour, time.Hour), line.ErrTooLate)
		require.Equal(t, 5*time.Millisecond, time.Since(start))
		require.ErrorIs(t, s.Wait(t.Context(), nil, start, time.Hour, time.Hour), line.ErrTooLate)
		s.Leave()
	})
}

// TestPlace_WaitEndsWithItsContext, and when the process stops. It keeps its place: the next caller
// goes on there.
func TestPlace_WaitEndsWithItsContext(t *testing.T) {
	stand(t, func(t *testing.T, s *standing) {
		member := s.ask(3, "1")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, s.Wait(ctx, nil, time.Time{}, time.Hour, time.Hour), context.Canceled)
		stop := make(chan struct{})
		close(stop)
		require.ErrorIs(t, s.Wait(t.Context(), stop, time.Time{}, time.Hour, time.Hour), line.ErrStopped)
		require.True(t, s.InLine())
		require.Equal(t, member, s.Member())
		s.Leave()
	})
}

// clusterClient returns a client that subscribes by SSUBSCRIBE first.
// TestPlace_SaysHowItListens: a member begins with '*' where the channel is a sharded one. If the
// server does not know those, as miniredis, the process joins with another member, at its old
// place.
// TestPlace_IsWokenOnAShardedChannel, on which the server of the test, unlike miniredis, lets it
// subscribe.
