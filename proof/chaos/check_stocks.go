package main

import (
	"slices"
	"time"

	"github.com/sluice-go/sluice"
)

// soldOutFor is for how long a Queue says by itself that an item is sold out.
const soldOutFor = 100 * time.Millisecond

// sameTake is what calls have in common that one Queue answers from memory: its process and
// handle, and the item.
type sameTake struct {
	process, queue, item string
	policy               int
}

func takeOf(r *record) sameTake { return sameTake{r.Process, r.Name, r.Take.Item, r.Policy} }

// checkStocks checks the stocks. In the log, after each entry, what is held is what the tasks
// hold, and what is sold changes with the tasks that end only: see dealt. Totals are those that
// were set. A take that was told Kept or sold out was told so rightly. When everything is quiet,
// the library says what the log says.
func (t *tasksCheck) checkStocks() {
	for _, fault := range t.stockLog.faults {
		t.report("%s", fault)
	}
	t.counts.add(t.stockLog.ends)
	t.checkTotals()
	for _, r := range t.enqueued {
		t.checkTake(r)
	}
	t.checkStocksAtEnd()
}

// checkUnits checks what a change of a task means for its units: it has those that its enqueue
// asked for, until it ends; then they are sold if it is done, and else put back.
func (t *tasksCheck) checkUnits(m *move) {
	had, has := m.was.units, m.is.units
	switch {
	case m.kind == added && m.was.ended && !m.was.isSold && had == has: // it has what one had that is no more
	case m.kind == added:
		if r := t.enqueued[m.is.version]; r != nil && has != unitsOf(r) {
			t.report("%v at %v was added with %+v, and %s asked for %+v", m.taskKey, m.span, has, r.Process, unitsOf(r))
		}
		if has.n > 0 {
			t.checkWereLeft(m)
		}
	case m.kind == removed, m.kind == deadRemoved:
		if had.n > 0 {
			t.checkEndOfUnits(m)
		}
	case had != has:
		t.report("%v at %v was %s with %+v, and had %+v", m.taskKey, m.span, m.kind, has, had)
	}
}

// checkWereLeft checks that as many units were left as a task has taken, unless it has them whatever
// is left: so have others of the same entry, perhaps behind it.
func (t *tasksCheck) checkWereLeft(m *move) {
	t.counts["units taken"] += int(m.is.units.n)
	isRestored := func(m *move) bool { r := t.enqueued[m.is.version]; return r != nil && r.Take.Restore }
	if isRestored(m) {
		t.counts["units restored"] += int(m.is.units.n)
		return
	}
	left := m.stock.total - m.stock.held - m.stock.sold
	for i := range t.moves {
		if o := &t.moves[i]; left < 0 && o.entry == m.entry && o.kind == added && o.is.units.item == m.is.units.item && isRestored(o) {
			left += o.is.units.n
		}
	}
	if left < 0 || !m.stock.isForSale {
		t.report("%v at %v has taken %+v, and so many were not left: %+v then", m.taskKey, m.span, m.is.units, m.stock)
	}
}

// unitsOf returns what an enqueue asked for.
func unitsOf(r *record) units { return units{r.Take.Item, int64(r.Take.Units)} }

// checkEndOfUnits checks that someone has asked for what the end of a task has done to its units.
func (t *tasksCheck) checkEndOfUnits(m *move) {
	handler := t.handlers[receipt{m.taskKey, m.was.delivery}]
	returned := hasWorkers(m.queue) && handler != nil && handler.Call <= m.before && handler.Result == done
	wanted, how := ends(m, opDequeue), "sold"
	switch {
	case !m.isSold:
		how = "put back"
		wanted = func(r *record) bool { return r.Op == opCancel || m.kind == deadRemoved && r.Op == opDrop }
	case m.kind == deadRemoved:
		wanted = func(*record) bool { return false }
	case m.queue == popQueue: // checkRemoval and checkReturned check it
		return
	case m.was.due != 0:
		wanted = func(r *record) bool { return r.Op == opDequeue && m.was.waitsFor(r.Score) }
	}
	if byHandler := returned && handler.Discards != m.isSold; !byHandler && !t.isRequested(m, wanted) {
		t.report("%v at %v was %s, its %+v were %s, and no client requested that", m.taskKey, m.span, m.kind, m.was.units, how)
	}
}

// checkTotals checks that the log has all totals that were acknowledged, and none that no client
// has requested.
func (t *tasksCheck) checkTotals() {
	wants := map[stockKey][]record{}
	for _, r := range t.records {
		if r.Op != opSetStock && r.Op != opEndSale {
			continue
		}
		key := stockKey{r.Name, r.Take.Item}
		wants[key] = append(wants[key], r)
		if r.Result != done || t.inGap(r.Call, r.Return) {
			continue
		}
		made := func(s stockSet) bool { return s.stockKey == key && s.total == r.Total && s.meets(r.Call, r.Return) }
		wasNone := func(s stock) bool { return r.Op == opEndSale && !s.isForSale && s.sold == 0 }
		if !slices.ContainsFunc(t.stockLog.sets, made) && !t.anyStock(key, r.Call, r.Return, wasNone) {
			t.report("%s of %s in %s to %d by %s returned nil at %v, and the log does not have it", r.Op, r.Take.Item, r.Name, r.Total, r.Process, r.Return)
		}
	}
	for _, s := range t.stockLog.sets {
		t.counts["totals set"]++
		wanted := func(r record) bool { return r.Total == s.total && r.Call <= s.before && r.mayHaveRun() }
		if !slices.ContainsFunc(wants[s.stockKey], wanted) {
			t.report("%v got the total %d at %v, and no client requested it", s.stockKey, s.total, s.span)
		}
	}
}

// anyStock says whether an item's stock was such at some moment within a span.
func (t *tasksCheck) anyStock(key stockKey, from, to time.Duration, such func(stock) bool) bool {
	all := t.stockLog.was[key]
	first, last := stock{}, len(all)-1
	if len(all) == 0 || all[0].before >= from {
		if such(first) {
			return true
		}
	}
	for i := range all {
		until := t.ended
		if i < last {
			until = all[i+1].before
		}
		if all[i].after <= to && until >= from && such(all[i].stock) {
			return true
		}
	}
	return false
}

// checkTake checks what an enqueue was told of a task that takes units.
func (t *tasksCheck) checkTake(r *record) {
	outcome := sluice.Outcome(r.Outcome)
	if r.Result != done && r.Result != short || t.inGap(r.Call, r.Return) {
		return
	}
	if r.Take.Units == 0 {
		if outcome == sluice.OutcomeSoldOut {
			t.report("%s by %s was told that it is sold out, and takes nothing", r.Version, r.Process)
		}
		return
	}
	t.counts["takes "+outcome.String()]++
	switch outcome {
	case sluice.OutcomeAdded: // see checkEnqueues and checkUnits
	case sluice.OutcomeDone: // see checkAnswer
	case sluice.OutcomeKept:
		if !t.heldThen(r) {
			t.report("%s by %s was told at %v that %s has units of %s, and none had", r.Version, r.Process, r.Return, r.ID, r.Take.Item)
		}
	case sluice.OutcomeSoldOut:
		t.checkSoldOut(r)
	default:
		t.report("%s by %s takes %+v, and was told %v", r.Version, r.Process, r.Take, outcome)
	}
}

// heldThen says whether a task of the ID held units of the item at some moment of the call.
func (t *tasksCheck) heldThen(r *record) bool {
	moves := t.moved[taskKey{r.Name, r.ID}]
	for i, m := range moves {
		until := t.ended
		if i+1 < len(moves) {
			until = moves[i+1].before
		}
		if m.is.units.item == r.Take.Item && m.is.alive().there() && m.after <= r.Return && until >= r.Call {
			return true
		}
	}
	return t.lostData(r.Call, r.Return)
}

// checkSoldOut checks that fewer units were left than a task was to take: at some moment of the
// call, or before it as long as a Queue may remember that.
func (t *tasksCheck) checkSoldOut(r *record) {
	key, from := stockKey{r.Name, r.Take.Item}, r.Call
	tooFew := func(s stock) bool { return !s.isForSale || s.left() < int64(r.Take.Units) }
	switch {
	case r.Take.Restore:
		t.report("%s by %s was told at %v that %s is sold out, and has its units whatever is left", r.Version, r.Process, r.Return, r.Take.Item)
		return
	case t.anyStock(key, from, r.Return, tooFew):
		return
	case !r.Batch:
		t.counts["takes that were told of what was before"]++
		from = t.toldSince(r)
	}
	if !t.anyStock(key, from, r.Return, tooFew) && !t.inGap(from, r.Return) {
		t.report("%s by %s was told at %v that %s in %s is sold out, and since %v there were always %d", r.Version, r.Process, r.Return, r.Take.Item, r.Name, from, r.Take.Units)
	}
}

// toldSince returns the earliest moment that an answer from memory may be about: the call, of the
// same Queue, to which the server gave it. That counts for a while after it has come, and for as
// long again while the next caller asks.
func (t *tasksCheck) toldSince(r *record) time.Duration {
	calls, from, within := t.takes[takeOf(r)], r.Call, soldOutFor
	asks := func(o *record) bool { return o != r && o.Call <= r.Return && (o.Return == 0 || o.Return >= r.Call) }
	if slices.ContainsFunc(calls, asks) {
		t.counts["takes that were told while another asked"]++
		within *= 2
	}
	for _, o := range calls {
		if o.Result == done && o.Outcome == int(sluice.OutcomeSoldOut) && o.Return >= r.Call-within && o.Call <= r.Return {
			from = min(from, o.Call)
		}
	}
	return from
}

// listedStock is what the library says of an item when everything is quiet.
type listedStock struct {
	sluice.StockInfo
	letters int64 // what the dead letters hold of it: there are no other tasks
}

// checkStocksAtEnd checks that the units are left, sold, or with the dead letters, and that the
// library says what the log says.
func (t *tasksCheck) checkStocksAtEnd() {
	for key, s := range t.end.stocks {
		listed, isListed := t.listedStocks[key]
		want := sluice.StockInfo{Total: s.total, Left: s.total - s.held - s.sold, Held: s.held, Sold: s.sold}
		isKnown := s.isForSale || s.held != 0 || s.sold != 0
		switch {
		case t.listedStocks == nil || !isKnown && !isListed:
		case listed.StockInfo != want:
			t.report("%v: the log says %+v when everything is quiet, and the library %+v", key, want, listed.StockInfo)
		case listed.Left+listed.Held+listed.Sold != listed.Total || listed.Held != listed.letters:
			t.report("%v is %+v when everything is quiet, and the tasks hold %d", key, listed.StockInfo, listed.letters)
		default:
			t.counts["stocks at the end"]++
		}
	}
	for key, s := range t.listedStocks {
		if _, known := t.end.stocks[key]; !known {
			t.report("%v is %+v when everything is quiet, and the log does not have it", key, s)
		}
	}
}
