package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

const (
	takenPerSecond = "taken/s"
	processCPU     = "CPU"
	serverCPU      = "server CPU"
	aloneP99       = "p99 alone"
)

// heldMany measures very many locks that are held for five TTLs.
func heldMany(locks int, ttl time.Duration) scenario {
	name := fmt.Sprint("held-", locks)
	settings := fmt.Sprintf("in %s: TTL %v, WithAutoRenew", name, ttl)
	return scenario{
		name: name,
		about: fmt.Sprintf("%d locks (a hundredth with -quick) with a TTL of %v, held for five TTLs: the server's commands,"+
			" the CPUs that the process and the server's main thread use, and how long another caller waits for a lock and its unlock"+
			" meanwhile, and before", locks, ttl),
		measure: commandsPerSecond,
		entries: []entrant{
			{name: sluiceName, settings: settings, open: plain(newRenewingFor(ttl))},
			{name: floorName, settings: fmt.Sprintf("in %s: a bare SET NX PX each, then pipelines of 1000 compare-and-PEXPIRE scripts"+
				" without a pause, every %v", name, ttl/3), open: plain(newHeldFloor(ttl))},
		},
		length: 5 * ttl,
		columns: []column{
			{locksLost, slices.Max[[]float64], whole}, {takenPerSecond, median, whole},
			{processCPU, median, percent}, {serverCPU, median, percent}, {aloneP99, median, inTime},
		},
		turn: func(ctx context.Context, t turn) (result, error) { return heldManyTurn(ctx, t, locks) },
	}
}

func newRenewingFor(ttl time.Duration) onRedis {
	return func(rdb redis.UniversalClient, _ setup) (contender, error) {
		l, err := sluice.NewLocker(rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew())
		return locker{l}, err
	}
}

func heldManyTurn(ctx context.Context, t turn, locks int) (r result, err error) {
	if t.quick {
		locks /= 100
	}
	other := bystander{contender: t.contender, name: uniqueName("bystander")}
	alone := other.during(func() { sleep(ctx, t.length/10) })
	unlocks := make([]unlock, locks)
	name := uniqueName("held")
	began := time.Now()
	err = inParallel(ctx, poolSize, locks, func(ctx context.Context, i int) (err error) {
		unlocks[i], err = t.contender.Lock(ctx, fmt.Sprint(name, "-", i))
		return err
	})
	if err != nil {
		return result{}, fmt.Errorf("lock: %w", err)
	}
	taken := float64(locks) / time.Since(began).Seconds()
	if err := t.meter.start(ctx); err != nil {
		return result{}, err
	}
	began = time.Now()
	cpu := usedByProcess()
	r.waits = other.during(func() { sleep(ctx, t.length) })
	cpu = usedByProcess() - cpu
	u, err := t.meter.read(ctx)
	took := time.Since(began)
	r.value = u.commands / took.Seconds()
	r.failures = heldToTheEnd(ctx, unlocks)
	r.extra = map[string]float64{
		locksLost: float64(r.failures.Count), takenPerSecond: taken, aloneP99: float64(alone.ValueAtQuantile(99)),
		processCPU: float64(cpu) / float64(took), serverCPU: u.cpu / float64(took),
	}
	r.failures.merge(other.failures)
	return r, err
}

// heldToTheEnd releases locks, and returns the errors of those that were lost.
func heldToTheEnd(ctx context.Context, unlocks []unlock) (lost failures) {
	errs := make([]error, len(unlocks))
	_ = inParallel(context.WithoutCancel(ctx), poolSize, len(unlocks), func(ctx context.Context, i int) error {
		errs[i] = unlocks[i](ctx)
		return nil
	})
	for _, err := range errs {
		lost.add(err)
	}
	return lost
}

// usedByProcess returns the CPU time of this process.
func usedByProcess() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for bad arguments only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bystander takes and releases a lock of its own again and again, with a pause after each.
type bystander struct {
	contender contender
	name      string
	failures  failures
}

// during returns how long each lock with its unlock took while do ran.
func (b *bystander) during(do func()) *hdrhistogram.Histogram {
	waits := newWaits()
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; !over.Load(); i++ {
			began := time.Now()
			unlock, err := b.contender.Lock(context.Background(), fmt.Sprint(b.name, "-", i%100))
			if err == nil {
				err = unlock(context.Background())
			}
			b.failures.add(err)
			_ = waits.RecordValue(int64(time.Since(began)))
			time.Sleep(time.Millisecond)
		}
	})
	do()
	over.Store(true)
	wg.Wait()
	return waits
}

// heldFloor takes locks with bare commands, and extends all of them in pipelines that follow
// each other. It looks at no lock's own time.
type heldFloor struct {
	floor
	ttl     time.Duration
	stop    context.CancelFunc
	stopped chan struct{}

	mu   *sync.Mutex // guards held
	held map[string]any
}

var floorExtend = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("PEXPIRE", KEYS[1], ARGV[2]) end return 0`)

func newHeldFloor(ttl time.Duration) onRedis {
	return func(rdb redis.UniversalClient, _ setup) (contender, error) {
		if err := floorExtend.Load(context.Background(), rdb).Err(); err != nil {
			return nil, err
		}
		ctx, stop := context.WithCancel(context.Background())
		f := heldFloor{
			floor: floor{rdb}, ttl: ttl, stop: stop, stopped: make(chan struct{}),
			mu: new(sync.Mutex), held: map[string]any{},
		}
		if err := floorFree.Load(ctx, rdb).Err(); err != nil {
			return nil, err
		}
		go f.run(ctx)
		return f, nil
	}
}

func (f heldFloor) Lock(ctx context.Context, name string) (unlock, error) {
	key, token := key(name), newToken()
	ok, err := f.rdb.SetNX(ctx, key, token, f.ttl).Result()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, errTaken)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[key] = token
	return func(ctx context.Context) error {
		f.mu.Lock()
		delete(f.held, key)
		f.mu.Unlock()
		n, err := floorFree.EvalSha(ctx, f.rdb, []string{key}, token).Int()
		if err == nil && n != 1 {
			err = errLost
		}
		return err
	}, nil
}

// run extends what is held, a third of the TTL after the round before.
func (f heldFloor) run(ctx context.Context) {
	defer close(f.stopped)
	for ctx.Err() == nil {
		began := time.Now()
		for part := range slices.Chunk(f.commands(ctx), 1000) {
			pipe := f.rdb.Pipeline()
			for _, c := range part {
				_ = pipe.Process(ctx, c)
			}
			_, _ = pipe.Exec(ctx) // what is lost shows when it is released
		}
		sleep(ctx, f.ttl/3-time.Since(began))
	}
}

func (f heldFloor) commands(ctx context.Context) (commands []*redis.Cmd) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, token := range f.held {
		commands = append(commands, redis.NewCmd(ctx, "EVALSHA", floorExtend.Hash(), 1, key, token, f.ttl.Milliseconds()))
	}
	return commands
}

func (f heldFloor) Close() error {
	f.stop()
	<-f.stopped
	return nil
}
