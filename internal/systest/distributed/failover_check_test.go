package distributed

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest"
)

// lostTasks is how many acknowledged tasks were lost, by what had failed last.
func (l *load) lostTasks() map[string]int {
	lost := map[string]int{}
	for _, task := range l.tasks {
		if task.acknowledged && task.handled == 0 {
			lost[task.kind]++
		}
	}
	return lost
}

// requireNothingLost requires that no lock was given twice, and no acknowledged task lost, after
// failovers of one kind.
func (l *load) requireNothingLost(kind string) {
	require.Zero(l, l.double[kind], "double grants")
	require.Zero(l, l.lostTasks()[kind], "lost tasks")
}

func (l *load) report() {
	acknowledged, unknown, refused, twice, unknownDone := 0, 0, 0, 0, 0
	for _, task := range l.tasks {
		switch {
		case task.acknowledged:
			acknowledged++
		case task.refused:
			refused++
		default:
			unknown++
			unknownDone += min(task.handled, 1)
		}
		if task.handled > 1 {
			twice++
		}
	}
	fences, taken, turned := 0, 0, 0
	for name, r := range l.registers {
		fences += len(l.fenced[name])
		taken, turned = taken+r.taken, turned+r.refused
	}
	l.Logf("%d locks granted, %d of them while another handle was valid (%v); %d fences, %d fenced writes taken, %d stale ones refused",
		l.grants, sum(l.double), l.double, fences, taken, turned)
	lost := l.lostTasks()
	l.Logf("%d tasks acknowledged, %d of them lost (%v), %d unknown of which %d were done, %d refused; %d handled more than once",
		acknowledged, sum(lost), lost, unknown, unknownDone, refused, twice)
	for text, n := range l.errors {
		l.Logf("%5d × %s", n, text)
	}
}

func sum(counts map[string]int) (all int) {
	for _, n := range counts {
		all += n
	}
	return all
}

// check requires what no failover may take away.
func (l *load) check() {
	l.wrongText(l.log.String())
	for name, gs := range l.fenced {
		l.wrong = append(l.wrong, systest.WrongFences(name, gs)...)
	}
	for id, task := range l.tasks {
		if task.refused && task.handled > 0 {
			l.wrong = append(l.wrong, "a task that was refused has been done: "+id)
		}
	}
	rdb := l.servers.Client(l)
	for key, q := range l.queues {
		s, err := q.Stats(context.Background())
		require.NoError(l, err)
		left := int64(0)
		for _, hash := range []string{key + ":tasks", "{" + key + "}:tasks", key + ":state", "{" + key + "}:state"} {
			left += rdb.HLen(context.Background(), hash).Val()
		}
		if left+s.Dead != 0 {
			l.wrong = append(l.wrong, fmt.Sprintf("%s: %d fields and %d dead letters are left of an empty queue", key, left, s.Dead))
		}
	}
	require.Empty(l, l.wrong[:min(len(l.wrong), 20)], "%d in all", len(l.wrong))
	require.NotZero(l, l.grants)
}
