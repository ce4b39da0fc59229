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
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// clientEnv makes this program a client process: it holds its settings.
const clientEnv = "SLUICE_CHAOS_CLIENT"

// patience is how long anything may take once all faults are over.
const patience = 15 * time.Second

// settings are what a client is told.
type settings struct {
	Process  string // its name, unique in the round
	Addr     string // of its proxy
	Register string // of the server that is not struck
	Records  string // its file
	Pool     int    // connections at most; 0 for go-redis's default
	Auto     bool   // it uses AutoPipeline
	Patience time.Duration
	Began    time.Duration // the round
	Seed     uint64
}

// client is a process that uses the library in every way, and records it.
type client struct {
	settings
	*recorder
	rdb      redis.UniversalClient
	register *redis.Client
	locker   *sluice.Locker

	produce context.Context // ends when there is to be nothing new
	consume context.Context // ends when all has been done
	busy    sync.WaitGroup  // whoever produces
	eating  sync.WaitGroup  // whoever consumes
}

// runClient is the main function of a client. It ends when its standard input does,
// as it does when the orchestrator dies in whatever way.
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
	go listen(lines, words)
	idle := runtime.NumGoroutine()
	c.connect()
	produce, quiet := context.WithCancel(context.Background())
	consume, end := context.WithCancel(context.Background())
	c.produce, c.consume = produce, consume
	c.eating.Go(c.pulse)
	c.start()

	<-words
	quiet()
	c.busy.Wait()
	c.finalLocks()
	fmt.Println("quiet")

	<-words
	end()
	c.eating.Wait()
	c.close(idle)
	fmt.Println("ended")
}

// listen passes on what the orchestrator says. When that has died, so does the client,
// whatever it waits for.
func listen(lines *bufio.Scanner, words chan<- string) {
	for lines.Scan() {
		words <- lines.Text()
	}
	os.Exit(1)
}

func (c *client) connect() {
	rdb := redis.NewClient(&redis.Options{
		Addr: c.Addr, PoolSize: c.Pool, ReadTimeout: c.Patience, WriteTimeout: c.Patience, DialTimeout: time.Second,
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

// start sets everybody to work: fewer with a pool of one, who mostly wait for it.
func (c *client) start() {
	many := 6
	if c.Pool == 1 {
		many = 2
	}
	for i := range many {
		c.busy.Go(c.forEver(c.contendHot))
		c.busy.Go(c.forEver(c.contendSlow))
		if i < 2 {
			c.busy.Go(c.forEver(c.contendLong))
			c.busy.Go(c.forEver(c.enqueue))
			c.eating.Go(c.loop)
		}
	}
	c.busy.Go(c.forEver(c.meddle))
	c.eating.Go(c.popLoop)
	c.eating.Go(c.peekLoop)
	c.startWorker()
}

// forEver does something again and again until there is to be nothing new.
func (c *client) forEver(do func(rng *rand.Rand)) func() {
	rng := c.rng()
	return func() {
		for c.produce.Err() == nil {
			do(rng)
		}
	}
}

// rng is a source of its own for whoever asks, fed by the seed.
func (c *client) rng() *rand.Rand { return rand.New(rand.NewPCG(c.Seed, c.seq.Add(1))) }

// pulse records when the process has not run for a while: because it was stopped, or
// the machine had others to run.
func (c *client) pulse() {
	const every, late = 10 * time.Millisecond, 50 * time.Millisecond
	for last := monotonic(); c.consume.Err() == nil; {
		time.Sleep(every)
		if now := monotonic(); now-last > every+late {
			rec := record{Op: opStall, Call: last, Seq: c.seq.Add(1)}
			c.end(rec, done)
		}
		last = monotonic()
	}
}

// close ends the library's part, and looks whether any goroutine of it is left.
func (c *client) close(idle int) {
	rec := c.begin(record{Op: opFinal, Name: "close"})
	err := c.locker.Close()
	_ = c.rdb.Close()
	_ = c.register.Close()
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > idle && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // they end one after the other
	}
	if n := runtime.NumGoroutine(); n > idle {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		c.end(c.begin(record{Op: opStuck, Name: fmt.Sprint(n-idle, " goroutines")}), refused)
	}
	c.end(rec, verdict(err))
}

// verdict is what an error says.
func verdict(err error) result {
	switch {
	case err == nil:
		return done
	case errors.Is(err, sluice.ErrUnknown):
		return unknown
	case errors.Is(err, sluice.ErrLost):
		return lostIt
	case errors.Is(err, sluice.ErrLocked):
		return locked
	case errors.Is(err, sluice.ErrNotHeld):
		return notHeld
	case errors.Is(err, sluice.ErrStale):
		return stale
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ctxEnded
	default:
		return refused
	}
}

// hurried is ctx, but in one of n cases it ends within a few milliseconds.
func hurried(ctx context.Context, rng *rand.Rand, n int) (context.Context, context.CancelFunc) {
	if rng.IntN(n) > 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, upTo(rng, 6*time.Millisecond))
}

func upTo(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most)))
}

// work takes a random time up to most.
func work(rng *rand.Rand, most time.Duration) {
	time.Sleep(upTo(rng, most)) // the work that a lock or lease is for
}
