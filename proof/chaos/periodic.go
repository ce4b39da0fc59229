package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// tickQueue has periodic tasks only, which the Workers of all clients have in their lists.
const tickQueue = "ticks"

// periods are the periods of the periodic tasks, by ID. Some are shorter than a lease.
var periods = map[string]time.Duration{"tick50": 50 * time.Millisecond, "tick300": 300 * time.Millisecond, "tick1000": time.Second}

// hasWorkers says whether a queue's tasks are handled by Workers.
func hasWorkers(queue string) bool {
	return queue == workQueue || isOfMany(queue) || queue == tickQueue || queue == onceQueue
}

// ticks returns the periodic tasks.
func ticks() (all []sluice.Periodic) {
	for id, every := range periods {
		all = append(all, sluice.Periodic{ID: id, Schedule: sluice.Every(every)})
	}
	return all
}

// occurrenceOf returns the occurrence that a delivery of a periodic task is of, as the log has it.
func occurrenceOf(due time.Time) string { return due.UTC().Format(time.RFC3339Nano) }

const frameStart = "\xffSLU"

// period is where the header that is kept with a task says which occurrence it is, and
// periodBefore, which one was handled last.
var (
	period       = regexp.MustCompile("sluice-period[\x14-\x1e]([0-9T:.-]+Z)")
	periodBefore = regexp.MustCompile("sluice-period-before[\x14-\x1e]([0-9T:.-]+Z)")
)

// wasHandled is what the version of an occurrence ends with that was handled, and keeps the place
// of the next one.
const wasHandled = " handled"

// occurrenceIn returns the occurrence that a stored payload is of.
func occurrenceIn(payload string) (occurrence string, ok bool) {
	if !strings.HasPrefix(payload, frameStart) {
		return "", false
	}
	found := period.FindStringSubmatch(payload)
	if found == nil {
		return "", false
	}
	if before := periodBefore.FindStringSubmatch(payload); before != nil && before[1] == found[1] {
		return found[1] + wasHandled, true
	}
	return found[1], true
}

// awaitTicks waits until each periodic task has been handled once more, and returns those that were
// not.
func (r *round) awaitTicks() (violations []string) {
	for id, every := range periods {
		begin := r.server.time()
		due := func() (time.Duration, bool) {
			if r.server.rdb.ZScore(context.Background(), "{Queue:"+tickQueue+"}:dead", id).Err() == nil {
				return 0, false // it comes back, perhaps after the end
			}
			payload, err := r.server.rdb.HGet(context.Background(), "{Queue:"+tickQueue+"}:tasks", id).Result()
			occurrence, _ := occurrenceIn(payload)
			at, _ := timeOf(occurrence)
			return time.Duration(at.UnixNano()), err == nil
		}
		for end := time.Now().Add(calmLimit); ; time.Sleep(20 * time.Millisecond) { // the clients still work
			at, there := due()
			if !there || at > begin+every { // see checkTicks of one that is not there
				break
			}
			if time.Now().After(end) {
				violations = append(violations, fmt.Sprintf("the periodic task %s does not go on: it is due at %v, and it is %v", id, at, r.server.time()))
				break
			}
		}
	}
	return violations
}
