package notify

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/redistest"
)

// setup is a notifier on a miniredis, and what the server has seen of it.
type setup struct {
	*Notifier
	m      *miniredis.Miniredis
	faults *redistest.Faults
	start  time.Time

	mu        sync.Mutex // guards what follows
	dials     []time.Duration
	commands  map[string][]time.Duration // by name and channel
	denied    map[string]bool            // channels
	dialErr   error
	dialHangs bool
	hangUps   int // for so many commands from now, the server closes the connection instead
}

// inBubble runs a test of a notifier on a fake clock, and closes the notifier.
func inBubble(t *testing.T, test func(t *testing.T, s *setup)) {
	t.Helper()
	inBubbleWith(t, func(o *redis.Options) redis.UniversalClient { return redis.NewClient(o) }, test)
}

// inBubbleWith is inBubble with a client of another kind.
func inBubbleWith(t *testing.T, client func(*redis.Options) redis.UniversalClient, test func(t *testing.T, s *setup)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &setup{
			m: miniredis.NewMiniRedis(), start: time.Now(),
			commands: map[string][]time.Duration{}, denied: map[string]bool{},
		}
		defer s.m.Close()
		first, err := s.m.Dial() // which starts the server
		require.NoError(t, err)
		require.NoError(t, first.Close())
		s.m.Server().SetPreHook(s.receive)
		s.faults = redistest.NewFaults(s.dial)
		rdb := client(&redis.Options{
			Addr:                     "127.0.0.1:6379", // a literal IP: looking up a name does not work in a bubble
			Dialer:                   s.faults.Dial,
			DialerRetries:            1,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer func() { require.NoError(t, rdb.Close()) }()
		s.Notifier = New(rdb)
		defer s.Close(context.Background())
		test(t, s)
	})
}

// dial makes a connection to the server. As a kernel does, and a net.Pipe doesn't, it takes
// what is written whether or not it is being read.
func (s *setup) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	s.mu.Lock()
	s.dials = append(s.dials, time.Since(s.start))
	hangs, err := s.dialHangs, s.dialErr
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	far, err := s.m.Dial()
	if err != nil {
		return nil, err
	}
	client, wire := net.Pipe()
	go carry(far, wire)
	go carry(wire, far)
	return client, nil
}

// carry brings what is written at one end to the other, until either is closed.
func carry(from, to net.Conn) {
	packets := make(chan []byte, 1000)
	go func() {
		defer func() { _ = to.Close() }()
		for p := range packets {
			if _, err := to.Write(p); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(packets)
	for {
		p := make([]byte, 4096)
		n, err := from.Read(p)
		if err != nil {
			return
		}
		packets <- p[:n]
	}
}

// receive notes a command, and refuses it where it is denied.
func (s *setup) receive(c *server.Peer, command string, args ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangUps > 0 {
		s.hangUps--
		c.Close()
		return true
	}
	for _, channel := range append(args, "")[:max(len(args), 1)] {
		s.commands[command+" "+channel] = append(s.commands[command+" "+channel], time.Since(s.start))
	}
	if command == "SUBSCRIBE" && s.denied[args[0]] {
		c.WriteError("NOPERM this user has no permissions to access the '" + args[0] + "' channel")
		return true
	}
	return false
}

// set changes the server's behaviour.
func (s *setup) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// at returns when the server was sent a command, from the start on.
func (s *setup) at(command string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands[command])
}

// dialled returns when connections were made.
func (s *setup) dialled() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.dials)
}

// notified takes the notification, and reports whether there was one. What was to come has
// come when it is called.
func notified(l *Listener) bool {
	synctest.Wait()
	select {
	case <-l.C:
		return true
	default:
		return false
	}
}

// onlyRoute is that of all channels without a Cluster.
func (s *setup) onlyRoute() *route { return s.routes[nil] }

// disconnected reports that no route has a connection. No loop may run.
func (s *setup) disconnected() bool {
	for _, r := range s.routes {
		if r.conn != nil {
			return false
		}
	}
	return true
}

// isOver reports whether the notifier's goroutines have ended, and with them its
// connection.
func (s *setup) isOver(t *testing.T) bool {
	t.Helper()
	over := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		s.group.Wait(ctx)
		if ctx.Err() == nil {
			close(over)
		}
	}()
	synctest.Wait()
	return background.IsClosed(over) && s.disconnected() && s.m.CurrentConnectionCount() == 0
}

func TestNotifier_NotifiesOnceItIsSubscribedAndThenPerMessage(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		l := s.Join("a", nil)
		require.False(t, s.Mark("a").Confirmed, "it is not confirmed yet")
		require.True(t, notified(l), "of the confirmation")
		require.False(t, notified(l), "once")
		require.True(t, s.Mark("a").Confirmed)
		require.False(t, s.Mark("b").Confirmed)
		for i := range 3 {
			s.m.Publish("a", "")
			require.True(t, notified(l))
			require.False(t, notified(l))
			require.Equal(t, i+1, s.Mark("a").received)
		}
		s.m.Publish("a", "")
		s.m.Publish("a", "")
		s.m.Publish("b", "")
		require.True(t, notified(l))
		require.False(t, notified(l), "one notification may stand for several messages")
		require.Equal(t, 5, s.Mark("a").received)
		require.Zero(t, s.Mark("b").received)
	})
}

func TestNotifier_AListenerOfAConfirmedChannelIsNotifiedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		first := s.Join("a", nil)
		require.True(t, notified(first))
		second := s.Join("a", nil)
		require.Len(t, second.C, 1, "without a question to the server")
		require.True(t, notified(second))
		require.Len(t, s.at("SUBSCRIBE a"), 1)
		require.False(t, notified(first))

		s.m.Publish("a", "")
		require.True(t, notified(first))
		require.True(t, notified(second))
		s.Leave("a", first)
		s.m.Publish("a", "")
		require.True(t, notified(second))
		require.False(t, notified(first))
		s.Leave("b", first) // which it never joined
		time.Sleep(time.Minute)
		require.True(t, s.Mark("a").Confirmed, "the other one still listens")
	})
}

// TestNotifier_TwoListenersShareARequest while their channel is not confirmed.
func TestNotifier_TwoListenersShareARequest(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		first, second := s.Join("a", nil), s.Join("a", nil)
		require.True(t, notified(first))
		require.True(t, notified(second))
		require.Len(t, s.at("SUBSCRIBE a"), 1)
		require.Len(t, s.dialled(), 1)
	})
}

func TestNotifier_LingersFiveSecondsAndEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		l := s.Join("a", nil)
		require.True(t, notified(l))
		s.m.Publish("a", "")
		require.True(t, notified(l))
		for range 3 { // a loop of short waits subscribes once
			s.Leave("a", l)
			time.Sleep(5*time.Second - time.Millisecond)
			l = s.Join("a", nil)
			require.True(t, notified(l))
		}
		require.Len(t, s.at("SUBSCRIBE a"), 1)
		require.Equal(t, 1, s.Mark("a").received)

		s.Leave("a", l)
		time.Sleep(5*time.Second - time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"a"}, s.m.PubSubChannels("*"))
		require.False(t, s.isOver(t))
		time.Sleep(time.Millisecond)
		require.True(t, s.isOver(t))
		require.Empty(t, s.m.PubSubChannels("*"))
		require.False(t, s.Mark("a").Confirmed)
		require.Zero(t, s.Mark("a").received)

		l = s.Join("a", nil) // and begins again
		require.True(t, notified(l))
		s.m.Publish("a", "")
		require.True(t, notified(l))
		require.Equal(t, 1, s.Mark("a").received, "counted anew")
		require.Len(t, s.dialled(), 2)
	})
}

// TestNotifier_EndsOneSubscriptionOfTwo on the connection that stays.
func TestNotifier_EndsOneSubscriptionOfTwo(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		a, b := s.Join("a", nil), s.Join("b", nil)
		require.True(t, notified(a))
		require.True(t, notified(b))
		s.Leave("a", a)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"b"}, s.m.PubSubChannels("*"))
		require.Equal(t, []time.Duration{5 * time.Second}, s.at("UNSUBSCRIBE a"))
		s.m.Publish("b", "")
		require.True(t, notified(b))
		require.Len(t, s.dialled(), 1)
	})
}

func TestNotifier_AnIdleConnectionSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		require.True(t, notified(s.Join("a", nil)))
		before := s.m.CommandCount()
		time.Sleep(48 * time.Hour)
		require.Equal(t, before, s.m.CommandCount())
		require.Len(t, s.dialled(), 1)
	})
}

func TestNotifier_CloseEndsEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		l := s.Join("a", nil)
		require.True(t, notified(l))
		start := time.Now()
		s.Close(t.Context())
		require.Zero(t, time.Since(start))
		require.True(t, s.isOver(t))

		started := 0
		s.onlyRoute().loop = background.NewLoop(func(func()) { started++ }, s.onlyRoute().turn)
		after := s.Join("b", nil)
		s.RequestPing("a")
		time.Sleep(time.Minute)
		require.True(t, s.isOver(t))
		require.Zero(t, started, "not even a goroutine that ends at once")
		require.False(t, notified(after))
		require.Len(t, s.dialled(), 1)
	})
}

// TestNotifier_LeaveAfterCloseStartsNothing: Close has returned, and waits for nothing more.
func TestNotifier_LeaveAfterCloseStartsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		l := s.Join("a", nil)
		require.True(t, notified(l))
		s.Close(t.Context())
		started := 0
		s.onlyRoute().loop = background.NewLoop(func(func()) { started++ }, s.onlyRoute().turn)
		s.Leave("a", l)
		require.Zero(t, started)
	})
}

// TestNotifier_CloseInAnOutage does not wait for a server that does not answer, nor for the
// pause between two connections.
func TestNotifier_CloseInAnOutage(t *testing.T) {
	for name, spoil := range map[string]func(s *setup){
		"half open":    func(s *setup) { s.faults.HalfOpen() },
		"refuses":      func(s *setup) { s.dialErr, s.hangUps = errors.New("connection refused"), 1 },
		"never dialed": func(s *setup) { s.dialHangs, s.hangUps = true, 1 },
		"hangs up":     func(s *setup) { s.hangUps = math.MaxInt },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *setup) {
				require.True(t, notified(s.Join("a", nil)))
				s.set(func() { spoil(s) })
				s.RequestPing("a")
				time.Sleep(1234 * time.Millisecond)
				start := time.Now()
				s.Close(t.Context())
				require.Zero(t, time.Since(start))
			})
		})
	}
}
