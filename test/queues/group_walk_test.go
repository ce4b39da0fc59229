package queues

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// groupWalk is a random walk over tasks of a few groups. It knows which there are, and which have
// been claimed.
type groupWalk struct {
	grouped
	rng      *rand.Rand
	base     time.Time
	perGroup int
	raised   map[string]bool   // groups that may have more in play than they have, since that was raised
	tasks    map[string]string // payloads of those that are there
	dead     map[string]bool
	held     []sluice.Entry
	sold     int
}

// total is how many phones there are: some tasks find none left.
const total = 4

// takes says whether tasks of that ID take a phone.
func takes(id string) bool { return strings.HasSuffix(id, "-3") || strings.HasSuffix(id, "-4") }

// front is what stands in front of a task's state field.
func front(id string) string {
	text := fmt.Sprintf("@%d:%s", len(groupOf(id)), groupOf(id))
	if takes(id) {
		text = "*1,5:phone" + text
	}
	return text
}

func (w *groupWalk) id() string { return fmt.Sprintf("g%d-%d", w.rng.IntN(3), w.rng.IntN(5)) }

func groupOf(id string) string { g, _, _ := strings.Cut(id, "-"); return g }

func (w *groupWalk) at() time.Time { return w.base.Add(time.Duration(w.rng.IntN(9)-6) * time.Hour) }

func (w *groupWalk) task(id string) sluice.Task {
	t := sluice.Task{
		ID: id, Group: groupOf(id), At: w.at(), Payload: []byte(fmt.Sprint(w.rng.Int64())),
		Duplicates: sluice.Duplicates(1 + w.rng.IntN(5)),
	}
	if takes(id) {
		t.Take = sluice.Take{Item: "phone", Units: 1}
	}
	return t
}

// units returns how many phones tasks hold.
func (w *groupWalk) units() (held int) {
	for id := range w.tasks {
		if takes(id) {
			held++
		}
	}
	return held
}

// took notes what has become of a task that was enqueued; asked is whether the server has said it.
func (w *groupWalk) took(t sluice.Task, outcome sluice.Outcome, asked bool) {
	switch _, is := w.tasks[t.ID]; outcome {
	case sluice.OutcomeAdded:
		require.False(w, is && (!w.dead[t.ID] || takes(t.ID)), t.ID)
		require.False(w, takes(t.ID) && w.units()+w.sold == total)
	case sluice.OutcomeKept:
		require.True(w, is, t.ID)
		return
	case sluice.OutcomeSoldOut:
		require.True(w, takes(t.ID) && w.units()+w.sold == total, t.ID)
		require.False(w, is && asked, t.ID) // an answer from memory looks at no ID
		return
	default:
		require.True(w, is && !takes(t.ID), t.ID)
	}
	w.tasks[t.ID] = string(t.Payload)
	delete(w.dead, t.ID)
}

// ended notes that a task is there no more.
func (w *groupWalk) ended(id string, isSold bool) {
	if isSold && takes(id) {
		w.sold++
	}
	delete(w.tasks, id)
	delete(w.dead, id)
}

func (w *groupWalk) step() {
	ctx := w.Context()
	switch op := w.rng.IntN(14); op {
	case 0, 1, 2, 3:
		t := w.task(w.id())
		outcome, err := w.Q.Enqueue(ctx, t)
		require.NoError(w, err)
		w.took(t, outcome, false)
	case 4:
		ts := make([]sluice.Task, 1+w.rng.IntN(6))
		for i := range ts {
			ts[i] = w.task(w.id())
		}
		outcomes, err := w.Q.EnqueueBatch(ctx, ts)
		require.NoError(w, err)
		for i, t := range ts {
			w.took(t, outcomes[i], true)
		}
	case 5, 6:
		for _, e := range w.Claim(1+w.rng.IntN(3), time.Hour) {
			require.Equal(w, groupOf(e.ID), e.Group)
			require.Equal(w, takes(e.ID), e.Take == sluice.Take{Item: "phone", Units: 1})
			require.Equal(w, w.tasks[e.ID], string(e.Payload))
			w.held = append(w.held, e)
		}
	case 7, 8:
		w.settle()
	case 9:
		id := w.id()
		state, err := w.Q.Cancel(ctx, id)
		require.NoError(w, err)
		_, is := w.tasks[id]
		require.Equal(w, is, state != sluice.StateAbsent, "%s %v", id, state)
		w.ended(id, false)
	case 10:
		id := w.id()
		found, err := w.Q.Reschedule(ctx, id, time.Until(w.at()))
		require.NoError(w, err)
		_, is := w.tasks[id]
		require.Equal(w, is && !w.dead[id], found, id)
	case 11:
		id := w.id()
		n, err := w.Q.Revive(ctx, id)
		require.NoError(w, err)
		require.Equal(w, w.dead[id], n == 1)
		delete(w.dead, id)
	case 12:
		es, err := w.Q.Pop(ctx, 1)
		require.NoError(w, err)
		for _, e := range es {
			require.Equal(w, w.tasks[e.ID], string(e.Payload))
			w.ended(e.ID, true)
		}
	case 13:
		w.perGroup = 1 + w.rng.IntN(3)
		w.raised = map[string]bool{"g0": true, "g1": true, "g2": true}
		require.NoError(w, w.Q.SetLimits(ctx, sluice.Limits{PerGroup: w.perGroup}))
	}
}

// settle ends a claim, or one that has ended already.
func (w *groupWalk) settle() {
	if len(w.held) == 0 {
		return
	}
	i := w.rng.IntN(len(w.held))
	e := w.held[i]
	w.held = append(w.held[:i], w.held[i+1:]...)
	field := w.RDB.HGet(w.Context(), "{"+w.Key+"}:state", e.ID).Val()
	parts := strings.Split(strings.TrimPrefix(field, front(e.ID)), ":")
	waits := len(parts) > 2 && parts[2] != "" // a version, which takes over
	how, err := w.rng.IntN(4), error(nil)
	switch how {
	case 0:
		err = w.Q.Dequeue(w.Context(), e)
	case 1:
		err = w.Q.Bury(w.Context(), "no", e)
	case 2:
		err = w.Q.Retry(w.Context(), time.Duration(w.rng.IntN(2))*time.Hour, "no", e)
	case 3:
		err = w.Q.Release(w.Context(), e)
	}
	if err != nil {
		require.ErrorIs(w, err, sluice.ErrStale)
		return
	}
	switch {
	case waits:
	case how == 0:
		w.ended(e.ID, true)
	case how == 1:
		w.dead[e.ID] = true
	}
}

// check compares the keys with each other, and with what the walk knows.
func (w *groupWalk) check(before map[string]int) (inPlay map[string]int) {
	ctx := w.Context()
	scores, waiting, unclaimed := map[string]float64{}, map[string]float64{}, map[string]float64{}
	inPlay = map[string]int{}
	for _, z := range w.RDB.ZRangeWithScores(ctx, w.Key, 0, -1).Val() {
		scores[z.Member.(string)] = z.Score
	}
	fields := w.RDB.HGetAll(ctx, "{"+w.Key+"}:state").Val()
	for _, member := range w.RDB.ZRange(ctx, "{"+w.Key+"}:groups", 0, -1).Val() {
		group, rest, _ := strings.Cut(member[1:], "\x00")
		switch member[0] {
		case '!':
			require.Contains(w, scores, rest)
			require.Equal(w, group, groupOf(rest))
			inPlay[group]++
			if fields[rest] == front(rest)+"::" {
				unclaimed[rest] = scores[rest]
			}
		case '~':
			us, err := strconv.ParseFloat(rest[:16], 64)
			require.NoError(w, err)
			id := rest[16:]
			require.NotContains(w, scores, id)
			require.NotContains(w, waiting, id, "twice")
			waiting[id] = us / 1e6
			require.Equal(w, group, groupOf(id))
		default:
			w.Fatalf("%q", member)
		}
	}
	plays := 0
	for _, n := range inPlay {
		plays += n
	}
	require.Len(w, scores, plays, "each task in the queue is in play")
	for id := range w.tasks {
		_, waits := waiting[id]
		_, plays := scores[id]
		require.Equal(w, w.dead[id], !waits && !plays, id)
	}
	require.Len(w, w.tasks, len(scores)+len(waiting)+len(w.dead))
	for id, due := range waiting {
		group := groupOf(id)
		if inPlay[group] >= w.perGroup {
			delete(w.raised, group)
		}
		require.True(w, w.raised[group] || inPlay[group] >= w.perGroup, "%s waits in vain", id)
		for other, at := range unclaimed {
			require.False(w, groupOf(other) == group && at > due+1e-5, "%s at %f waits for %s at %f", id, due, other, at)
		}
	}
	for group, n := range inPlay {
		require.LessOrEqual(w, n, max(w.perGroup, before[group]), group)
	}
	s, err := w.Q.Stats(ctx)
	require.NoError(w, err)
	require.EqualValues(w, len(waiting), s.GroupWaiting)
	info, err := w.Q.Stock(ctx, "phone")
	require.NoError(w, err)
	require.EqualValues(w, w.units(), info.Held)
	require.EqualValues(w, w.sold, info.Sold)
	return inPlay
}

// TestGroup_Walk: random operations on 15 tasks of 3 groups, of which some take units. After each,
// no group has too many in play, none waits in vain, the earliest are in play, nothing is lost, and
// each unit is left, held or sold.
func TestGroup_Walk(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for seed := range redistest.FullOrShort(uint64(8), uint64(4)) {
			w := &groupWalk{
				grouped: grouped{b}, rng: rand.New(rand.NewPCG(seed, 1)), base: time.Now(), perGroup: 1, //nolint:gosec // a test
				tasks: map[string]string{}, dead: map[string]bool{},
			}
			require.NoError(w, w.Q.Purge(w.Context()))
			require.NoError(w, w.Q.SetLimits(w.Context(), sluice.Limits{}))
			require.NoError(w, w.Q.DeleteStock(w.Context(), "phone"))
			require.NoError(w, w.Q.SetStock(w.Context(), "phone", total))
			var inPlay map[string]int
			for range 150 {
				w.step()
				inPlay = w.check(inPlay)
			}
		}
	})
}
