package lease

import (
	"container/heap"
	"time"

	"github.com/sluice-go/sluice/internal/shrink"
)

// schedule has elements by their times: a heap, so that a look at the next one costs the same
// among a hundred thousand as among ten, and a change little more.
type schedule[E interface{ placed() *place }] []E

// place is embedded in the elements of a schedule: an element is in one at most.
type place struct {
	at    time.Time // what the schedule is ordered by
	index int       // in the schedule, from 1; 0 while in none
}

func (p *place) placed() *place { return p }

// set puts e into the schedule at a time, or moves it there.
func (s *schedule[E]) set(e E, at time.Time) {
	p := e.placed()
	p.at = at
	if p.index > 0 {
		heap.Fix(s, p.index-1)
	} else {
		heap.Push(s, e)
	}
}

// remove takes e out of the schedule, if it is in it.
func (s *schedule[E]) remove(e E) {
	if p := e.placed(); p.index > 0 {
		heap.Remove(s, p.index-1)
	}
}

// next returns when the first element is to be looked at, and whether there is one.
func (s schedule[E]) next() (at time.Time, ok bool) {
	if len(s) == 0 {
		return time.Time{}, false
	}
	return s[0].placed().at, true
}

// Len, Less, Swap, Push and Pop are for package heap alone.

func (s schedule[E]) Len() int { return len(s) }

func (s schedule[E]) Less(i, j int) bool { return s[i].placed().at.Before(s[j].placed().at) }

func (s schedule[E]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].placed().index, s[j].placed().index = i+1, j+1
}

func (s *schedule[E]) Push(x any) {
	e := x.(E)
	*s = append(*s, e)
	e.placed().index = len(*s)
}

func (s *schedule[E]) Pop() any {
	last := len(*s) - 1
	e := (*s)[last]
	clear((*s)[last:])
	*s = shrink.Slice((*s)[:last])
	e.placed().index = 0
	return e
}
