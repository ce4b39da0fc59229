package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Columns of what an operation uses: a lock and its unlock, or a task. Commands are all that
// the server runs, including those within scripts and those of other clients.
const (
	commandsPerOp = "commands/op"
	scriptsPerOp  = "scripts/op"
	allocsPerOp   = "allocs"
)

var (
	commandsColumn = column{commandsPerOp, median, threeDigits}
	scriptsColumn  = column{scriptsPerOp, median, threeDigits}
	// allocsColumn is for scenarios of one process.
	allocsColumn = column{allocsPerOp, median, whole}
)

func threeDigits(v float64) string { return fmt.Sprintf("%.3g", v) }

// usage has counts since the start of the server and of this process.
type usage struct {
	scripts, commands float64 // by the server
	mallocs           float64 // by this process
}

// meter measures what a turn uses. It is started before the turn; a turn that prepares
// something starts it again after that.
type meter struct {
	addr string
	from usage
}

func (m *meter) start(ctx context.Context) (err error) {
	m.from, err = used(ctx, m.addr)
	return err
}

// read returns what was used since start.
func (m *meter) read(ctx context.Context) (usage, error) {
	now, err := used(ctx, m.addr)
	return usage{now.scripts - m.from.scripts, now.commands - m.from.commands, now.mallocs - m.from.mallocs}, err
}

// perOp adds to a result what each operation used.
func (m *meter) perOp(ctx context.Context, r *result) error {
	if r.ops == 0 {
		return nil
	}
	u, err := m.read(ctx)
	if r.extra == nil {
		r.extra = map[string]float64{}
	}
	r.extra[commandsPerOp] = u.commands / r.ops
	r.extra[scriptsPerOp] = u.scripts / r.ops
	r.extra[allocsPerOp] = u.mallocs / r.ops
	return err
}

var commandsPerSecond = measure{"commands/s", less, func(v float64) string {
	if v >= 1000 {
		return whole(v) + "/s"
	}
	return threeDigits(v) + "/s"
}}

// commandsDuring returns how many commands per second the server runs during d.
func (m *meter) commandsDuring(ctx context.Context, d time.Duration) (float64, error) {
	if err := m.start(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	sleep(ctx, d)
	u, err := m.read(ctx)
	return u.commands / time.Since(began).Seconds(), err
}

// sleep returns when d has passed or ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// housekeeping has the commands that set up connections, and those of this program.
var housekeeping = []string{"auth", "client", "config", "hello", "info", "select", "slowlog"}

func used(ctx context.Context, addr string) (u usage, err error) {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	u.mallocs = float64(stats.Mallocs)
	all, err := info(ctx, addr, "commandstats")
	for key, text := range all {
		var calls float64
		if _, err := fmt.Sscanf(text, "calls=%f", &calls); err != nil {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(key, "cmdstat_"), "|")
		switch {
		case slices.Contains(housekeeping, name):
			continue
		case strings.HasPrefix(name, "eval"):
			u.scripts += calls
		}
		u.commands += calls
	}
	return u, err
}
