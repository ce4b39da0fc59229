package model

import (
	"cmp"
	"slices"
)

// queueKey is a state without what makes no difference to any later step.
type queueKey [120]int8

// key replaces times by their rank. Only their order matters, since leases are longer than
// everything that happens meanwhile. A stale receipt stays stale, since no two scores are
// equal.
func (QueueWalk) key(s queueState) (key queueKey) {
	var times [32]float64
	n := 0
	each := func(x float64) {
		if x > 0 {
			times[n] = x
			n++
		}
	}
	s.normalize()
	s.eachTime(each)
	slices.Sort(times[:n])
	ranks := slices.Compact(times[:n])
	at := 0
	put := func(x int8) {
		key[at] = x
		at++
	}
	s.encode(put, func(x float64) {
		rank, _ := slices.BinarySearch(ranks, x)
		put(int8(rank))
	})
	return key
}

// stale replaces the score of every stale receipt, and past every time that has come.
const stale, past = 0.5, 0.25

// normalize clears what makes no difference to any later step.
func (s *queueState) normalize() {
	receipt := func(r *receipt) {
		if r.version > 0 && r.score != s.item.Score && r.score != s.item.Token && !(s.item.Waiting && r.score == s.item.Due) {
			r.score = stale
		}
		if r.version > 0 && r.until <= s.now {
			r.until = past
		}
	}
	var used [len(s.versions)]bool
	used[s.latest], used[versionOf(s.item)] = true, true
	for i := range s.workers {
		k := &s.workers[i]
		receipt(&k.task)
		receipt(&k.command.with)
		receipt(&k.command.claimed)
		k.command.done = k.command.done && k.command.kind == extendIt
		used[k.task.version], used[k.command.with.version], used[k.command.claimed.version] = true, true, true
	}
	for i := range s.copies {
		receipt(&s.copies[i].with)
		used[s.copies[i].with.version] = true
	}
	slices.SortFunc(s.copies[:], func(a, b queueCommand) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.with.version, b.with.version), cmp.Compare(a.with.score, b.with.score))
	})
	for v := range s.versions {
		if !used[v] {
			s.versions[v] = version{}
		}
	}
}

// eachTime calls f with the state's times.
func (s *queueState) eachTime(f func(x float64)) {
	s.encode(func(int8) {}, f)
}

// encode calls put with the state's numbers, and time with its times.
func (s *queueState) encode(put func(int8), time func(float64)) {
	flags := func(flags ...bool) {
		sum := int8(0)
		for i, flag := range flags {
			if flag {
				sum |= 1 << i
			}
		}
		put(sum)
	}
	time(s.now)
	put(versionOf(s.item))
	put(int8(s.item.Attempt))
	put(int8(s.item.Unseen))
	flags(s.item.Queued, s.item.Waiting, s.item.Listed, s.item.Buried, s.violated != "")
	time(s.item.Score)
	time(s.item.Lease)
	time(s.item.Token)
	time(s.item.Due)
	for _, k := range s.workers {
		put(k.left)
		flags(k.working, k.extended, k.crashed, k.command.answered, k.command.done, k.command.leased)
		put(k.task.version)
		time(k.task.score)
		time(k.task.until)
		put(int8(k.command.kind))
		for _, r := range []receipt{k.command.with, k.command.claimed} {
			put(r.version)
			time(r.score)
			time(r.until)
		}
	}
	for _, m := range s.copies {
		put(int8(m.kind))
		put(m.with.version)
		time(m.with.score)
	}
	for _, v := range s.versions {
		put(v.claims)
		put(v.finished)
		flags(v.buried)
	}
	put(s.latest)
	put(s.ended)
	put(s.leaps)
	put(s.faults)
	put(s.foreign)
}
