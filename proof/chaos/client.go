package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// clientEnv makes this program a client process. It holds the client's settings.
const clientEnv = "SLUICE_CHAOS_CLIENT"

// calmLimit is how long a call may take once all faults are over.
const calmLimit = 15 * time.Second

// settings are a client's settings.
type settings struct {
	Process  string        // its name, unique in the round
	Addr     string        // of its proxy
	Register string        // the address of the server that no fault strikes
	Records  string        // its file
	Pool     int           // connections at most; 0 for go-redis's default
	Auto     bool          // it uses AutoPipeline
	Timeout  time.Duration // of reads and writes
	Began    time.Duration // when the round began
	Seed     uint64
	Calm     time.Duration // it pauses for up to this long between two operations: see liveness.go
}

// client is a process that uses the library in every way, and records each operation.
type client struct {
	settings
	*recorder
	rdb      redis.UniversalClient
	register *redis.Client
	locker   *sluice.Locker

	wanted    atomic.Value    // the moment at which it is to be struck; "" for none
	produce   context.Context // ends when producers must stop
	consume   context.Context // ends when all tasks are done
	handles   sync.Map        // queueHandle to sluice.Queues: calls of several goroutines on one are merged
	producers sync.WaitGroup  // goroutines that produce
	consumers sync.WaitGroup  // goroutines that consume
}

// runClient is the main function of a client. It ends when its standard input ends, which
// the kernel closes when the orchestrator dies.
func runClient(env string) {
	c := &client{}
	lines := bufio.NewScanner(os.Stdin)
	err := json.Unmarshal([]byte(env), &c.settings)
	if err == nil {
		c.recorder, err = newRecorder(c.Records)
	}
	if err != nil {
		panic(err)
	}
	words := make(chan string)
	c.wanted.Store("")
	go c.listen(lines, words)
	idle := runtime.NumGoroutine()
	c.connect()
	produce, quiet := context.WithCancel(context.Background())
	consume, end := context.WithCancel(context.Background())
	c.produce, c.consume = produce, consume
	c.consumers.Go(c.pulse)
	c.start()

	<-words
	quiet()
	c.producers.Wait()
	c.finalLocks()
	fmt.Println("quiet")

	<-words
	end()
	c.consumers.Wait()
	c.close(idle)
	fmt.Println("ended")
}

// listen forwards the orchestrator's words, except moments. When the orchestrator has died, listen
// ends the process.
func (c *client) listen(lines *bufio.Scanner, words chan<- string) {
	for lines.Scan() {
		if word := lines.Text(); slices.Contains(moments, word) {
			c.wanted.Store(word)
		} else {
			words <- word
		}
	}
	os.Exit(1)
}

func (c *client) connect() {
	rdb := redis.NewClient(&redis.Options{
		Addr: c.Addr, PoolSize: c.Pool, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout, DialTimeout: time.Second,
	})
	c.rdb = rdb
	if c.Auto {
		auto, err := rdb.AutoPipeline()
		if err != nil {
			panic(err)
		}
		c.rdb = auto
	}
	c.register = redis.NewClient(&redis.Options{Addr: c.Register})
	var err error
	if c.locker, err = sluice.NewLocker(c.rdb); err != nil {
		panic(err)
	}
}

// start starts the client's goroutines: fewer with a pool of one connection, for which most
// of them would wait.
func (c *client) start() {
	claimed := slices.Concat([]string{loopQueue, plainQueue, onceQueue}, manyNames)
	often := slices.Concat(claimed, []string{loopQueue, plainQueue})
	contenders := 6
	if c.Pool == 1 || c.Calm != 0 {
		contenders = 2
	}
	for i := range contenders {
		c.producers.Go(c.repeat(c.contendHot))
		c.producers.Go(c.repeat(c.contendSlow))
		if i < 2 {
			c.producers.Go(c.repeat(c.contendLong))
			c.producers.Go(c.repeat(c.contendGate))
			c.producers.Go(c.repeat(c.contendMixed))
			c.producers.Go(c.repeat(c.contendSet))
			c.producers.Go(c.repeat(c.enqueue))
			if c.Calm == 0 {
				c.consumers.Go(func() { c.loop(often...) })
			}
		}
	}
	if c.Calm != 0 { // at each queue one waits, always
		for _, name := range claimed {
			c.consumers.Go(func() { c.loop(name) })
		}
	}
	if c.Calm == 0 {
		c.producers.Go(c.repeat(c.trade))
		c.consumers.Go(c.stranger)
	}
	c.producers.Go(c.repeat(c.adopt))
	c.producers.Go(c.repeat(c.force))
	c.producers.Go(c.repeat(c.operate))
	c.producers.Go(c.repeat(c.enqueueOnce))
	c.producers.Go(c.repeat(c.enqueueSafely))
	c.producers.Go(c.repeat(c.contendSafe))
	c.consumers.Go(c.popLoop)
	c.consumers.Go(c.peekLoop)
	c.startWorker(workQueue, nil)
	c.startWorker(manyQueues, nil)
	c.startWorker(onceQueue, nil)
	c.startWorker(tickQueue, ticks())
}

// repeat returns a function that calls do again and again until producers must stop.
func (c *client) repeat(do func(rng *rand.Rand)) func() {
	rng := c.rng()
	return func() {
		for c.produce.Err() == nil {
			do(rng)
			if c.Calm != 0 {
				work(rng, c.Calm)
			}
		}
	}
}

// rng returns a new source of random numbers, seeded by the client's seed.
func (c *client) rng() *rand.Rand { return rand.New(rand.NewPCG(c.Seed, c.seq.Add(1))) }

// pulse records the times when the process did not run, because it was stopped or because
// the machine was busy.
func (c *client) pulse() {
	const every = 10 * time.Millisecond
	tooLong := 50 * time.Millisecond
	if c.Calm != 0 {
		tooLong = unseenLag
	}
	for last := monotonic(); c.consume.Err() == nil; {
		time.Sleep(every)
		now := monotonic()
		if now-last > every+tooLong {
			rec := record{Op: opStall, Call: last + every, Seq: c.seq.Add(1)}
			c.end(rec, done)
		}
		last = now // and not later: the process may be stopped while it writes the record
	}
}

// close closes the library, and records goroutines of it that do not end. That takes seconds: a
// calm client has no time for it.
func (c *client) close(idle int) {
	rec := c.begin(record{Op: opFinal, Name: "close"})
	err := c.locker.Close()
	_ = c.rdb.Close()
	_ = c.register.Close()
	for deadline := time.Now().Add(calmLimit); c.Calm == 0 && runtime.NumGoroutine() > idle && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // they end one after the other
	}
	if n := runtime.NumGoroutine(); c.Calm == 0 && n > idle {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		c.end(c.begin(record{Op: opStuck, Name: fmt.Sprint(n-idle, " goroutines")}), refused)
	}
	c.end(rec, resultOf(err))
}

// resultOf returns the result that an error means.
func resultOf(err error) result {
	switch {
	case err == nil:
		return done
	case errors.Is(err, sluice.ErrUnknown):
		return unknown
	case errors.Is(err, sluice.ErrUnderReplicated):
		return short
	case errors.Is(err, sluice.ErrLost):
		return lostIt
	case errors.Is(err, sluice.ErrLocked) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		return waited
	case errors.Is(err, sluice.ErrLocked):
		return locked
	case errors.Is(err, sluice.ErrNotHeld), errors.Is(err, sluice.ErrClosed): // UnlockAll has released it
		return notHeld
	case errors.Is(err, sluice.ErrStale):
		return stale
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ctxEnded
	case errors.Is(err, sluice.ErrCorrupt):
		return corrupt
	default:
		return refused
	}
}

// withShortContext returns a context like ctx that in one of n cases ends within a few
// milliseconds.
func withShortContext(ctx context.Context, rng *rand.Rand, n int) (context.Context, context.CancelFunc) {
	if rng.IntN(n) > 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, upTo(rng, 6*time.Millisecond))
}

// upTo returns a random duration below limit.
func upTo(rng *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(limit)))
}

// work sleeps for a random time below limit.
func work(rng *rand.Rand, limit time.Duration) {
	time.Sleep(upTo(rng, limit)) // stands for the work that a lock or lease protects
}
