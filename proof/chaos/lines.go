package main

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// lines is what the server holds of the lines in which processes wait for locks.
type lines struct {
	entries map[string]map[string]float64 // by lock and member, the score
	ends    map[string]time.Duration      // by lock, when the line expires by the server's clock; none without a TTL
}

func newLines() lines {
	return lines{map[string]map[string]float64{}, map[string]time.Duration{}}
}

func (l lines) clone() lines {
	all := map[string]map[string]float64{}
	for name, line := range l.entries {
		all[name] = maps.Clone(line)
	}
	return lines{all, maps.Clone(l.ends)}
}

// lineLife is the TTL that a line gets.
const lineLife = time.Minute

// lineLog is what the log shows of all lines.
type lineLog struct {
	faults  []string
	joined  int
	woken   int             // releases that took an entry out
	passed  int             // of these, whose first one taken out was not the first in line: it may have left, and not been woken
	scores  map[string]bool // by lock, process and score: which were given
	last    map[string]bool // processes that have joined the line of a final lock, see finalLocks: these have lived to the end
	regrown map[string]bool // by lock and member: entries that came back when the server lost data
}

func newLineLog() lineLog {
	return lineLog{scores: map[string]bool{}, last: map[string]bool{}, regrown: map[string]bool{}}
}

// lineName returns the lock that a line belongs to, if the key is a line.
func lineName(key string) (name string, ok bool) {
	if name, ok = strings.CutPrefix(key, "{Lock:"); ok {
		name, ok = strings.CutSuffix(name, "}:line")
	}
	return name, ok
}

var lineMember = regexp.MustCompile(`^\*?([A-Z2-7]{12}):(?:.+:)?[1-9]\d*:[1-9]\d*$`)

// processOf returns the process that an entry stands for.
func processOf(member string) string {
	if parts := lineMember.FindStringSubmatch(member); parts != nil {
		return parts[1]
	}
	return ""
}

// first returns the first entry of a line.
func first(line map[string]float64) (member string) {
	for m, score := range line {
		if member == "" || cmp.Or(cmp.Compare(score, line[member]), cmp.Compare(m, member)) < 0 {
			member = m
		}
	}
	return member
}

// step is what an entry of the log does to one lock and its line.
type step struct {
	stands  bool // the line is changed
	freed   bool // the lock's key is deleted, and not taken again
	removed int  // how many are taken out of the line
	passed  int  // of these, how many were not the first
}

// standing replays the commands of an entry of the log that are on lines.
func (r *replayer) standing(at *entry) {
	steps := map[string]*step{}
	of := func(name string) *step {
		if steps[name] == nil {
			steps[name] = &step{}
		}
		return steps[name]
	}
	for _, command := range at.commands {
		if len(command) < 2 {
			continue
		}
		verb := strings.ToUpper(command[0])
		if name, ok := lockName(command[1]); ok {
			of(name).freed = verb == "DEL"
		} else if name, ok := lineName(command[1]); ok {
			r.stand(of(name), name, verb, command[2:], at.span)
		}
	}
	for name, s := range steps {
		r.judge(name, s, at.span)
	}
}

// stand replays a command on a line.
func (r *replayer) stand(s *step, name, verb string, args []string, at span) {
	s.stands = true
	latest := r.clock.highest(at.before)
	switch {
	case verb == "ZADD" && len(args) == 2:
		r.joins(name, args[1], args[0], at)
	case verb == "ZREM" && len(args) == 1:
		s.removed++
		if first(r.lines.entries[name]) != args[0] {
			s.passed++
		}
		r.leaves(name, args[0], at)
	case verb == "PEXPIREAT" && len(args) == 1:
		ends := milliseconds(args[0])
		if r.lines.ends[name] = ends; ends > latest+lineLife+time.Millisecond {
			r.amiss(at, name, "expires at %v, which is too late: it is %v", ends, latest)
		}
	case verb == "DEL" || verb == "UNLINK":
		if ends, ok := r.lines.ends[name]; !ok || ends > latest {
			r.amiss(at, name, "was deleted before its end at %v", ends)
		}
		r.endLine(name)
	default:
		r.amiss(at, name, "was changed by %s with %d arguments", verb, len(args))
	}
}

// judge checks what an entry of the log has done to a line. One process may leave it; those that
// are woken, and the dead that are skipped, are the first.
func (r *replayer) judge(name string, s *step, at span) {
	if s.passed > 1 {
		r.amiss(at, name, "%d left in one step that were not the first", s.passed)
	}
	if _, ends := r.lines.ends[name]; s.stands && !ends && len(r.lines.entries[name]) > 0 {
		r.amiss(at, name, "has no TTL")
	}
	if s.freed && s.removed > 0 {
		r.lineLog.woken++
		r.lineLog.passed += min(s.passed, 1)
	}
}

// joins adds an entry. It goes to the end of the line, or to the place that the process had before.
func (r *replayer) joins(name, member, text string, at span) {
	line := r.lines.entries[name]
	if line == nil {
		line = map[string]float64{}
		r.lines.entries[name] = line
	}
	process, known := processOf(member), name+" "+processOf(member)+" "+text
	score, err := strconv.ParseFloat(text, 64)
	if err != nil || process == "" {
		r.amiss(at, name, "has an entry %q with score %q", member, text)
	}
	if _, there := line[member]; there {
		r.amiss(at, name, "was joined again by %s", member)
	}
	if !r.lineLog.scores[known] {
		for other, its := range line {
			if its >= score {
				r.amiss(at, name, "was joined by %s with %s before %s, which has %.0f", member, text, other, its)
			}
		}
	}
	r.lineLog.scores[known] = true
	line[member] = score
	r.lineLog.joined++
	delete(r.lineLog.regrown, name+" "+member)
	if strings.Contains(name, ".final") {
		r.lineLog.last[process] = true
	}
}

func (r *replayer) leaves(name, member string, at span) {
	if _, there := r.lines.entries[name][member]; !there {
		r.amiss(at, name, "had no entry %s, which left", member)
	}
	delete(r.lines.entries[name], member)
	if len(r.lines.entries[name]) == 0 {
		r.endLine(name)
	}
}

func (r *replayer) endLine(name string) {
	delete(r.lines.entries, name)
	delete(r.lines.ends, name)
}

// amiss notes what is wrong with a line.
func (r *replayer) amiss(at span, name, format string, args ...any) {
	r.lineLog.faults = append(r.lineLog.faults, fmt.Sprintf("the line of %s at %v: ", name, at)+fmt.Sprintf(format, args...))
}

// rewound notes which entries came back as the server lost data: their processes do not know that.
func (r *replayer) rewound(was, is lines) {
	for name, line := range is.entries {
		for member := range line {
			if _, there := was.entries[name][member]; !there {
				r.lineLog.regrown[name+" "+member] = true
			}
		}
	}
}

// checkLines checks the lines: what the log shows of them, and that at the end none has an entry of
// a process that has lived so long, unless the server lost data in between.
func (c *checker) checkLines() {
	log := c.lineLog
	c.counts["places in line"] += log.joined
	c.counts["processes at the end"] += len(log.last)
	c.counts[wokeOne] += log.woken
	c.counts[passedFirst] += log.passed
	for _, fault := range log.faults {
		if len(c.gaps) > 0 { // the log lacks what the server had carried out
			c.counts["lines amiss after a gap in the log, excused"]++
			continue
		}
		c.report("%s", fault)
	}
	earliest, _ := c.clock.at(span{c.ended, c.ended})
	for _, name := range slices.Sorted(maps.Keys(c.end.lines.entries)) {
		for member := range c.end.lines.entries[name] {
			switch {
			case c.end.lines.ends[name] <= earliest:
				c.counts["entries left in line until its TTL ended"]++
			case !log.last[processOf(member)]:
				c.counts[leftInLine]++
			case log.regrown[name+" "+member] || len(c.gaps) > 0:
				c.counts["entries that came back with a loss of data"]++
			default:
				c.report("%s is left in the line of %s, and its process has lived to the end and does not wait", member, name)
			}
		}
	}
}

const (
	leftInLine  = "entries left in line by killed clients"
	wokeOne     = "releases that took an entry out of the line"
	passedFirst = "releases that took one out that was not the first"
)
