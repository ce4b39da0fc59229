package redisexec

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// answer is what a test's server does with a command.
type answer struct {
	after     time.Duration // the time that it takes
	value     any
	err       error
	unwritten bool // the command is never written to a connection
	panics    bool // the client panics, or a hook of its
	deferred  bool // the client says so later, as an autopipeline does: only the command has the error
}

var (
	errRefused  = serverError("ERR refused")
	errLoading  = serverError("LOADING Redis is loading the dataset in memory")
	errNoScript = serverError("NOSCRIPT No matching script. Please use EVAL.")
	errTimeout  = errors.New("i/o timeout")
	errPool     = errors.New("connection pool timeout")
)

var (
	carriedOut  = answer{value: int64(7)}
	refused     = answer{err: errRefused}
	unavailable = answer{err: errLoading}
	unwritten   = answer{err: errPool, unwritten: true}
	closed      = answer{err: redis.ErrClosed, unwritten: true}
	noReply     = answer{err: errTimeout}
	unknownSHA  = answer{err: errNoScript}
)

// taking is the answer, after a time.
func (a answer) taking(d time.Duration) answer {
	a.after = d
	return a
}

// server is a client whose commands a test answers, and the record of them. Everything
// else of the client is missing.
type server struct {
	redis.UniversalClient

	mu      sync.Mutex // guards what follows
	answers []answer   // in order; the last one is for all that come after it
	log     record
}

// record is what a server was sent.
type record struct {
	commands  [][]any
	at        []time.Time
	contexts  []error // each command's context's error when it was sent
	pipelines []int   // the sizes of the pipelines
}

func newServer(answers ...answer) *server { return &server{answers: answers} }

// next takes the next answer, and notes a command.
func (s *server) next(ctx context.Context, c *command) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.commands = append(s.log.commands, c.Cmd.Args()) // not c.Args, which notes that it was written
	s.log.at = append(s.log.at, time.Now())
	s.log.contexts = append(s.log.contexts, ctx.Err())
	a := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return a
}

// apply gives a command its answer.
func (a answer) apply(c *command) {
	if a.err != nil {
		c.SetErr(a.err)
	} else {
		c.SetErr(nil)
		c.SetVal(a.value)
	}
}

func (s *server) Process(ctx context.Context, cmd redis.Cmder) error {
	c := cmd.(*command)
	a := s.next(ctx, c)
	if !a.unwritten {
		c.Args()
	}
	time.Sleep(a.after)
	if a.panics {
		panic("secret")
	}
	a.apply(c)
	if a.deferred {
		return nil
	}
	return a.err
}

func (s *server) Pipeline() redis.Pipeliner { return &pipe{server: s} }

// pipe is a pipeline to a server. It takes as long as its slowest command. As with a client that
// has ContextTimeoutEnabled, the end of its context costs it the replies.
type pipe struct {
	redis.Pipeliner
	server   *server
	commands []*command
}

func (p *pipe) Process(_ context.Context, cmd redis.Cmder) error {
	p.commands = append(p.commands, cmd.(*command))
	return nil
}

func (p *pipe) Exec(ctx context.Context) ([]redis.Cmder, error) {
	p.server.mu.Lock()
	p.server.log.pipelines = append(p.server.log.pipelines, len(p.commands))
	p.server.mu.Unlock()
	answers := make([]answer, len(p.commands))
	var longest time.Duration
	for i, c := range p.commands {
		answers[i] = p.server.next(ctx, c)
		if !answers[i].unwritten {
			c.Args()
		}
		longest = max(longest, answers[i].after)
	}
	select {
	case <-time.After(longest):
	case <-ctx.Done():
		for i := range answers {
			answers[i] = noReply
		}
	}
	for i, c := range p.commands {
		if answers[i].panics {
			panic("secret")
		}
		answers[i].apply(c)
	}
	return nil, nil
}

// record returns what the server was sent so far.
func (s *server) record() record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return record{
		commands: slices.Clone(s.log.commands), at: slices.Clone(s.log.at),
		contexts: slices.Clone(s.log.contexts), pipelines: slices.Clone(s.log.pipelines),
	}
}

// counter counts the notifications of an OnUnknown.
type counter struct {
	mu    sync.Mutex // guards what follows
	times []time.Time
	over  []bool
}

func (c *counter) outcomeUnknown(over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times, c.over = append(c.times, time.Now()), append(c.over, over)
}

func (c *counter) count() int { return len(c.told()) }

// told returns what each notification has said.
func (c *counter) told() []bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.over)
}

var (
	script = NewScript("return 1", "digest", Idempotent)
	byHash = []any{"evalsha", "digest", 1, "key", "token"}
	inFull = []any{"eval", "return 1", 1, "key", "token"}
	setKey = []any{"set", "key", "token"}
)

// plain returns a plain command's request.
func plain(retry RetryPolicy) Request {
	r := Plain(setKey...)
	r.Retry = retry
	return r
}

// bubble runs a test on a fake clock with an executor on a server, and closes it.
func bubble(t *testing.T, s redis.UniversalClient, test func(t *testing.T, e *Executor)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := New(s)
		test(t, e)
		e.Close(t.Context())
	})
}

// endsAfter returns a context that ends after d.
func endsAfter(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
