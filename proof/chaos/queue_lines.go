package main

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// queueLines is what the server holds of the lines in which idle clients wait for tasks.
type queueLines struct {
	entries map[string]map[string]float64 // by key and client, the score: negative for the watchman
	ends    map[string]time.Duration      // by key, when the line expires by the server's clock; none without a TTL
}

func newQueueLines() queueLines {
	return queueLines{map[string]map[string]float64{}, map[string]time.Duration{}}
}

func (l queueLines) clone() queueLines { return queueLines(lines(l).clone()) }

// queueLineLog is what the log shows of all lines of queues.
type queueLineLog struct {
	faults  []string
	joined  int
	watches int // entries that became the watchman, or watch for longer
}

// isQueueLine says whether a key is the line of a queue.
func isQueueLine(key string) bool {
	name, which := queueName(key)
	return name != "" && which == "line"
}

var queueLineMember = regexp.MustCompile(`^\*?[A-Z2-7]{12}$`)

// idling replays the commands of an entry of the log that are on lines of queues. While a script
// runs, a line may be without a TTL.
func (r *replayer) idling(at *entry) {
	touched := map[string]bool{}
	for _, command := range at.commands {
		if len(command) > 2 && isQueueLine(command[1]) {
			touched[command[1]] = true
			r.idle(command[1], strings.ToUpper(command[0]), command[2:], at.span)
		} else if len(command) == 2 && isQueueLine(command[1]) { // DEL or UNLINK
			r.idleLineEnds(command[1], at.span)
		}
	}
	for key := range touched {
		r.judgeIdle(key, at.span)
	}
}

// idle replays a command on the line of a queue.
func (r *replayer) idle(key, verb string, args []string, at span) {
	line := r.idlers.entries[key]
	switch {
	case verb == "ZADD" && (len(args) == 2 || len(args) == 3 && args[0] == "XX"):
		text, member := args[len(args)-2], args[len(args)-1]
		score, err := strconv.ParseFloat(text, 64)
		if _, there := line[member]; !there {
			r.idleLog.joined++
			if len(args) == 3 || err != nil || !queueLineMember.MatchString(member) {
				r.idleAmiss(at, key, "has a new entry %q with score %q", member, text)
			}
		}
		if score < 0 {
			r.idleLog.watches++
		}
		if line == nil {
			line = map[string]float64{}
			r.idlers.entries[key] = line
		}
		line[member] = score
	case verb == "ZREM" && len(args) == 1:
		if _, there := line[args[0]]; !there {
			r.idleAmiss(at, key, "had no entry %s, which left", args[0])
		}
		if delete(line, args[0]); len(line) == 0 {
			delete(r.idlers.entries, key)
			delete(r.idlers.ends, key)
		}
	case verb == "PEXPIREAT" && len(args) == 1:
		ends, latest := milliseconds(args[0]), r.clock.highest(at.before)
		if r.idlers.ends[key] = ends; ends > latest+lineLife+time.Millisecond {
			r.idleAmiss(at, key, "expires at %v, which is too late: it is %v", ends, latest)
		}
	default:
		r.idleAmiss(at, key, "was changed by %s with %d arguments", verb, len(args))
	}
}

// idleLineEnds replays that a line was deleted: it has expired.
func (r *replayer) idleLineEnds(key string, at span) {
	if ends, ok := r.idlers.ends[key]; !ok || ends > r.clock.highest(at.before) {
		r.idleAmiss(at, key, "was deleted before its end at %v", ends)
	}
	delete(r.idlers.entries, key)
	delete(r.idlers.ends, key)
}

// judgeIdle checks a line that an entry of the log has changed: it has a TTL, and one watchman at
// most.
func (r *replayer) judgeIdle(key string, at span) {
	watchmen := 0
	for score := range maps.Values(r.idlers.entries[key]) {
		if score < 0 {
			watchmen++
		}
	}
	if watchmen > 1 {
		r.idleAmiss(at, key, "has %d watchmen", watchmen)
	}
	if _, ends := r.idlers.ends[key]; !ends && len(r.idlers.entries[key]) > 0 {
		r.idleAmiss(at, key, "has no TTL")
	}
}

// idleAmiss notes what is wrong with a line of a queue.
func (r *replayer) idleAmiss(at span, key, format string, args ...any) {
	r.idleLog.faults = append(r.idleLog.faults, fmt.Sprintf("%s at %v: ", key, at)+fmt.Sprintf(format, args...))
}

// checkQueueLines checks the lines of queues. A client that is closed leaves its entry, which costs
// one message, and ends with the line.
func (c *checker) checkQueueLines() {
	c.counts["places in lines of queues"] += c.idleLog.joined
	c.counts["watches of queues"] += c.idleLog.watches
	for _, fault := range c.idleLog.faults {
		if len(c.gaps) > 0 { // the log lacks what the server had carried out
			c.counts["lines amiss after a gap in the log, excused"]++
			continue
		}
		c.report("%s", fault)
	}
	for _, line := range c.end.idlers.entries {
		c.counts["entries left in lines of queues"] += len(line)
	}
}
