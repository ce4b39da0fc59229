package model_test

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
)

// run is tasks of a batch that follow each other by a microsecond each.
type run struct {
	base  float64 // what delays count from
	due   int64   // when the first is due, in microseconds, from then on or in Unix time
	isAt  bool
	chunk int
	take  sluice.Take
	group string
	n     int
}

// duesOf returns when the tasks of a batch are due, to the last bit: the sums are those that the
// scripts make, of which a place in a group may depend. chunks has of each the place of its chunk's
// first task.
func duesOf(now float64, tasks []sluice.Task, chunks []int) (dues []float64) {
	var runs []run
	same := map[[3]int64]int64{}
	base := now
	for i, task := range tasks {
		if i > 0 && chunks[i] == i {
			base = sevenDecimals(base + float64(i-chunks[i-1])*0.000001) // where the script before has ended
		}
		r := run{base: base, due: micros(task.Delay), chunk: chunks[i], take: task.Take, group: task.Group, n: 1}
		if task.Take != (sluice.Take{}) {
			r.take.Units = cmp.Or(r.take.Units, 1)
		}
		key := [3]int64{r.due, int64(chunks[i])}
		if !task.At.IsZero() {
			r.isAt, r.due = true, task.At.Add(time.Microsecond-1).UnixMicro()
			key = [3]int64{r.due, 0, 1}
		}
		r.due += same[key]
		same[key]++
		if last := len(runs) - 1; last >= 0 && runs[last].isFollowedBy(r) {
			runs[last].n++
		} else {
			runs = append(runs, r)
		}
	}
	for _, r := range runs {
		dues = append(dues, r.dues()...)
	}
	return dues
}

func (r run) isFollowedBy(o run) bool {
	next := r
	next.due, next.n = r.due+int64(r.n), 1
	return next == o
}

// dues are those of the tasks, as tasks.lua has them.
func (r run) dues() (dues []float64) {
	first := decimal(r.due)
	if !r.isAt {
		first += r.base
	}
	whole := math.Floor(first)
	rest := int64(math.Floor((first-whole)*1e7 + 0.5))
	isAlike := first >= 1<<30 && rest+int64(r.n)*10 < 1e7
	for i := range r.n {
		if isAlike {
			dues = append(dues, parsed(int64(whole), rest+int64(i)*10))
		} else {
			dues = append(dues, sevenDecimals(first+float64(i)/1e6))
		}
	}
	return dues
}

// sevenDecimals returns a time as a script has it that reads what another one has written.
func sevenDecimals(x float64) float64 {
	whole := math.Floor(x)
	rest := int64(math.Floor((x-whole)*1e7 + 0.5))
	if x < 1<<30 || rest >= 1e7 {
		return x
	}
	return parsed(int64(whole), rest)
}

func parsed(whole, rest int64) float64 {
	x, err := strconv.ParseFloat(fmt.Sprintf("%d.%07d", whole, rest), 64)
	if err != nil {
		panic(err)
	}
	return x
}
