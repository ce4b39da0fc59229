package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// server answers pipelines as a test says. Everything else of the client is missing.
type server struct {
	redis.UniversalClient

	mu     sync.Mutex // guards what follows
	sizes  []int      // of the pipelines
	delay  time.Duration
	answer func(cmd redis.Cmder)
	sent   func(keys []string) // if set, is told of each pipeline, with mu held
}

func (s *server) Pipeline() redis.Pipeliner {
	return &pipe{server: s}
}

type pipe struct {
	redis.Pipeliner
	server *server
	cmds   []redis.Cmder
}

func (p *pipe) Process(_ context.Context, cmd redis.Cmder) error {
	_ = cmd.Args() // as a connection does that writes it
	p.cmds = append(p.cmds, cmd)
	return nil
}

func (p *pipe) Exec(context.Context) ([]redis.Cmder, error) {
	s := p.server
	s.mu.Lock()
	s.sizes = append(s.sizes, len(p.cmds))
	delay := s.delay
	if s.sent != nil {
		s.sent(keysOf(p.cmds))
	}
	s.mu.Unlock()
	time.Sleep(delay)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range p.cmds {
		s.answer(cmd)
	}
	return p.cmds, nil
}

func keysOf(cmds []redis.Cmder) (keys []string) {
	for _, cmd := range cmds {
		key, _ := cmd.Args()[3].(string) // after EVALSHA, digest and 1
		keys = append(keys, key)
	}
	return keys
}

func (s *server) pipelines() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int{}, s.sizes...)
}

var script = redisexec.NewScript("-- a script", "digest", redisexec.Idempotent)

// held is a Renewable.
type held struct {
	lease    *Lease
	ttl      time.Duration
	mu       sync.Mutex // guards extended
	extended []time.Duration
	start    time.Time
}

func newHeld(ttl time.Duration) *held {
	return &held{lease: begun(ttl, 0), ttl: ttl, start: time.Now()}
}

func (h *held) TTL() time.Duration  { return h.ttl }
func (h *held) Deadline() time.Time { return h.lease.Deadline() }
func (h *held) Renewable() bool     { return h.lease.Renewable() }
func (h *held) Key() any            { return "key" }
func (h *held) Replicas() any       { return nil }
func (h *held) Extension() (redisexec.Request, bool) {
	return script.Request([]any{"key"}, "token"), h.lease.Valid()
}

func (h *held) HandleExtension(sent time.Time, r redisexec.Result) bool {
	if r.Err != nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.extended = append(h.extended, time.Since(h.start))
	return h.lease.Extend(sent.Add(h.ttl), sent.Add(h.ttl))
}

func (h *held) times() []time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]time.Duration{}, h.extended...)
}

func succeed(cmd redis.Cmder) { cmd.(interface{ SetVal(any) }).SetVal(int64(1)) }

func fail(cmd redis.Cmder) { cmd.SetErr(errors.New("i/o timeout")) }

func TestRenewer_ExtendsAtAThirdInOnePipeline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: succeed}
		executor := redisexec.New(s)
		r := NewRenewer(executor)
		first, second := newHeld(30*time.Second), newHeld(32*time.Second)
		r.Add(first)
		r.Add(second) // due within a tenth of its TTL: it goes along
		time.Sleep(29 * time.Second)
		require.Equal(t, []int{2, 2}, s.pipelines())
		require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second}, first.times())
		r.Remove(t.Context(), 0, second)
		time.Sleep(2 * time.Second)
		require.Equal(t, []int{2, 2, 1}, s.pipelines())
		r.Remove(t.Context(), 0, first)
		start := time.Now()
		executor.Close(t.Context()) // the loop ends when nothing is left
		require.LessOrEqual(t, time.Since(start), 10*time.Second)
		require.Equal(t, []int{2, 2, 1}, s.pipelines())
	})
}

func TestRenewer_TriesAgainUntilTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: fail}
		executor := redisexec.New(s)
		r := NewRenewer(executor)
		h := newHeld(20 * time.Second)
		r.Add(h)
		time.Sleep(19*time.Second + 500*time.Millisecond)
		tries := len(s.pipelines()) // each 1 s after the one before, from 6.7 s on
		require.InDelta(t, 13, tries, 1)
		s.mu.Lock()
		s.answer = succeed
		s.mu.Unlock()
		time.Sleep(5 * time.Second)
		require.NotEmpty(t, h.times(), "the last try counts")
		require.True(t, h.lease.Valid())
		r.Close()
		executor.Close(t.Context())
	})
}

func TestRenewer_GivesAHungBatchUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: succeed, delay: 11 * time.Second}
		executor := redisexec.New(s)
		r := NewRenewer(executor)
		h := newHeld(30 * time.Second)
		r.Add(h)
		time.Sleep(15*time.Second + time.Millisecond) // five after it was sent
		require.Len(t, s.pipelines(), 1)
		time.Sleep(6 * time.Second)
		require.Equal(t, []time.Duration{21 * time.Second}, h.times(), "a late answer counts")
		require.Equal(t, h.start.Add(40*time.Second), h.Deadline(), "from the send on")
		r.Remove(t.Context(), 0, h)
		r.Close()
		executor.Close(t.Context())
	})
}

func TestRenewer_RemoveWaitsForWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: succeed, delay: time.Second}
		executor := redisexec.New(s)
		r := NewRenewer(executor)
		h := newHeld(30 * time.Second)
		r.Add(h)
		time.Sleep(10*time.Second + 100*time.Millisecond)
		start := time.Now()
		r.Remove(t.Context(), 0, h)
		require.Equal(t, 900*time.Millisecond, time.Since(start))

		r.Add(newHeld(30 * time.Second))
		other := newHeld(30 * time.Second)
		r.Add(other)
		time.Sleep(10*time.Second + 100*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start = time.Now()
		r.Remove(ctx, 50*time.Millisecond, other)
		require.Equal(t, 50*time.Millisecond, time.Since(start), "the grace after an ended context")
		r.Close()
		executor.Close(t.Context())
	})
}

// TestRenewer_RemoveWaitsThoughTheLeaseHasEnded: Unlock ends the lease before it calls
// Remove, and the loop may take a turn in between.
func TestRenewer_RemoveWaitsThoughTheLeaseHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: succeed, delay: time.Second}
		executor := redisexec.New(s)
		r := NewRenewer(executor)
		h := newHeld(30 * time.Second)
		r.Add(h)
		time.Sleep(10*time.Second + 100*time.Millisecond)
		require.True(t, h.lease.End(nil))
		r.loop.Wake()
		synctest.Wait()
		start := time.Now()
		r.Remove(t.Context(), 0, h)
		require.Equal(t, 900*time.Millisecond, time.Since(start))
		r.Close()
		executor.Close(t.Context())
	})
}

// TestRenewer_SendsNothingThatWasRemoved: a batch whose goroutine runs late does not send
// what was removed, or given up, meanwhile.
func TestRenewer_SendsNothingThatWasRemoved(t *testing.T) {
	t.Parallel()
	s := &server{answer: succeed}
	r := NewRenewer(redisexec.New(s))
	removed, given, kept := newHeld(time.Minute), newHeld(time.Minute), newHeld(time.Minute)
	begin := func(leases ...Renewable) *batch {
		for _, m := range leases {
			e := &entry{lease: m, due: time.Now()}
			r.entries[m] = e
			r.wait(e, nil)
		}
		return r.beginBatch(r.nodes[nil], time.Now())
	}
	first := begin(removed, kept)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	removed.lease.End(nil)
	r.Remove(ctx, 0, removed)
	r.send(first)
	require.Equal(t, []int{1}, s.pipelines())
	require.Len(t, kept.times(), 1)
	require.Empty(t, removed.times())

	r.Forget(kept)
	second := begin(given)
	second.giveUp = time.Now()
	r.send(second)
	require.Equal(t, []int{1}, s.pipelines())
	r.Close()
}

// TestRenewer_FirstExtensionIsSoonerWhenLittleIsLeft: where the acquisition has taken most
// of the TTL.
func TestRenewer_FirstExtensionIsSoonerWhenLittleIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: succeed}
		executor := redisexec.New(s)
		r := NewRenewer(executor)
		h := &held{lease: begun(10*time.Second, 0), ttl: time.Minute, start: time.Now()}
		r.Add(h)
		time.Sleep(6 * time.Second)
		require.Equal(t, []time.Duration{5 * time.Second}, h.times())
		r.Close()
		executor.Close(t.Context())
	})
}
