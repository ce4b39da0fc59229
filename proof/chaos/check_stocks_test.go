package main

import (
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// forSale has the loop queue sell so many units of "x".
func forSale(total int64) *scenario { return newScenario().at(2).setTotal(total) }

// setTotal gives "x" another total, or ends its sale.
func (s *scenario) setTotal(total int64) *scenario {
	s.logs(strings.ReplaceAll("HSET {Queue:loop}:stock total:x N", "N", string(rune('0'+max(total, 0)))))
	what := opSetStock
	if total == noSale {
		s.log[len(s.log)-1].commands = [][]string{{"HDEL", "{Queue:loop}:stock", "total:x", "sold:x"}}
		what = opEndSale
	}
	now := s.now / ms
	return s.recorded(record{Op: what, Name: loopQueue, Take: sluice.Take{Item: "x"}, Total: total, Call: now, Return: now + 1, Result: done})
}

// told records an enqueue of "t" that takes units of "x", with that answer.
func (s *scenario) told(version string, n int, o sluice.Outcome) *scenario {
	now := s.now / ms
	return s.recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: version, Take: sluice.Take{Item: "x", Units: n},
		Call: now, Return: now + 1, Result: done, Outcome: int(o)})
}

// withLast changes the last record.
func (s *scenario) withLast(change func(r *record)) *scenario {
	change(&s.records[len(s.records)-1])
	return s
}

// takes enqueues "t" with one unit, as version "v".
func (s *scenario) takes() *scenario {
	return s.at(10).logs(addedHolding).told("v", 1, sluice.OutcomeAdded)
}

// takesAndClaims claims it at 30, too.
func (s *scenario) takesAndClaims() *scenario {
	return s.takes().at(30).logs(claimedHolding).settled(opDelivery, "v", 430, 1, done).at(40)
}

// dequeues records a Dequeue of what was claimed.
func (s *scenario) dequeues() *scenario { return s.settled(opDequeue, "", 430, 0, done) }

// byID records a call that names "t".
func (s *scenario) byID(what op) *scenario {
	now := s.now / ms
	return s.recorded(record{Op: what, Name: loopQueue, ID: "t", Call: now, Return: now + 1, Result: done})
}

// buries makes it a dead letter.
func (s *scenario) buries() *scenario {
	return s.takesAndClaims().logs("ZREM Queue:loop t; ZADD {Queue:loop}:dead @@40 t; HSET {Queue:loop}:state t *1,1:x1:dead:no").
		settled(opBury, "", 430, 0, done).at(50)
}

// discards has a handler discard "t" of the work queue, which has units, in this way.
func discards(isDiscarded bool, end string) *scenario {
	work := func(transaction string) string { return strings.ReplaceAll(transaction, "Queue:loop", "Queue:work") }
	s := newScenario().at(2).logs(work("HSET {Queue:loop}:stock total:x 3"))
	s.recorded(record{Op: opSetStock, Name: workQueue, Take: sluice.Take{Item: "x"}, Total: 3, Call: 2, Return: 3, Result: done})
	s.at(10).logs(work(addedHolding)).told("v", 1, sluice.OutcomeAdded).withLast(func(r *record) { r.Name = workQueue })
	s.at(30).logs(work(claimedHolding)).answered(done, 0, 430, 31).withLast(func(r *record) { r.Discards = isDiscarded })
	return s.at(40).logs(work(end))
}

// showsStock has the library say that of "x" when everything is quiet.
func (s *scenario) showsStock(info sluice.StockInfo, letters int64) *scenario {
	s.listedStocks = map[stockKey]listedStock{{loopQueue, "x"}: {info, letters}}
	return s
}

const (
	addedHolding   = "ZADD Queue:loop @@10 t; HSET {Queue:loop}:state t *1,1:x::; HSET {Queue:loop}:tasks t v; HINCRBY {Queue:loop}:stock held:x 1"
	claimedHolding = "ZREM {Queue:loop}:leased t; ZREM Queue:loop t; ZADD Queue:loop @@430 t; ZADD {Queue:loop}:leased @@430 t; HSET {Queue:loop}:state t *1,1:x1:@@430:"
	unheld         = "; HINCRBY {Queue:loop}:stock held:x -1"
	soldOne        = unheld + "; HINCRBY {Queue:loop}:stock sold:x 1"
	dropped        = "ZREM {Queue:loop}:dead t; HDEL {Queue:loop}:tasks t; HDEL {Queue:loop}:state t"
	plainAgain     = "ZADD Queue:loop @@50 t; HSET {Queue:loop}:tasks t w"
)

// sold is the name of the state field that tells of units which "t" held, and whose end is put off.
var (
	sold   = strings.Repeat(".", 513) + "1795853186.1234567t"
	putOff = gone + "; HSET {Queue:loop}:state " + sold + " *1,1:x$"
	swept  = "HDEL {Queue:loop}:state " + sold + soldOne + "; HSET {Queue:loop}:stock sweep 0"
)

// addedPlain enqueues "t" again at 50, without units, by what the log shows.
func (s *scenario) addedPlain(transaction string) *scenario {
	return s.at(50).logs(transaction).recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 50, Return: 51, Result: done, Outcome: 1})
}

// stockCases are about stocks.
var stockCases = map[string]checkCase{
	"stock: sold":      {forSale(3).takesAndClaims().logs(gone+soldOne).dequeues().showsStock(sluice.StockInfo{Total: 3, Left: 2, Sold: 1}, 0), ""},
	"stock: put back":  {forSale(3).takesAndClaims().logs(gone+unheld).byID(opCancel).showsStock(sluice.StockInfo{Total: 3, Left: 3}, 0), ""},
	"stock: dropped":   {forSale(3).buries().logs(dropped + unheld).byID(opDrop), ""},
	"stock: discarded": {discards(true, strings.ReplaceAll(gone+unheld, "Queue:loop", "Queue:work")), ""},
	"stock: dead":      {forSale(3).buries().showsStock(sluice.StockInfo{Total: 3, Left: 2, Held: 1}, 1), ""},
	"stock: sold later": {forSale(3).takesAndClaims().logs(putOff).dequeues().at(60).logs(swept).
		showsStock(sluice.StockInfo{Total: 3, Left: 2, Sold: 1}, 0), ""},
	"stock: sold later, and enqueued again meanwhile": {forSale(3).takesAndClaims().logs(putOff).dequeues().addedPlain(plainAgain).
		at(60).logs(swept).at(70).logs(gone).byID(opCancel), ""},
	"stock: lost by a power cut": {forSale(3).takes().at(20).lost(1), ""},
	"stock: the end lost by a power cut": {forSale(3).takesAndClaims().logs(gone+soldOne).dequeues().at(45).lost(3).
		at(70).logs(gone+soldOne).dequeues().showsStock(sluice.StockInfo{Total: 3, Left: 2, Sold: 1}, 0), ""},

	"stock: a field is not written": {forSale(3).at(10).logs("ZADD Queue:loop @@10 t; HSET {Queue:loop}:tasks t v; HINCRBY {Queue:loop}:stock held:x 1").told("v", 1, sluice.OutcomeAdded),
		"1 units are held, and the tasks hold 0"},
	"stock: neither is a count": {forSale(3).at(10).logs("ZADD Queue:loop @@10 t; HSET {Queue:loop}:tasks t v").told("v", 1, sluice.OutcomeAdded), "asked for {item:x n:1}"},
	"stock: a hold is not counted": {forSale(3).at(10).logs("ZADD Queue:loop @@10 t; HSET {Queue:loop}:state t *1,1:x::; HSET {Queue:loop}:tasks t v").told("v", 1, sluice.OutcomeAdded),
		"0 units are held, and the tasks hold 1"},
	"stock: too many are taken":             {forSale(3).at(10).logs(addedHolding).told("v", 2, sluice.OutcomeAdded), "asked for {item:x n:2}"},
	"stock: none is left":                   {forSale(0).takes().at(20).logs(gone + unheld).byID(opCancel), "so many were not left"},
	"stock: none is for sale":               {newScenario().takes().at(20).logs(gone + unheld).byID(opCancel), "so many were not left"},
	"stock: restored":                       {newScenario().takes().withLast(restores).at(20).logs(gone + unheld).byID(opCancel), ""},
	"stock: one is left, and one restored":  {forSale(1).restoredBeside(addedHolding), ""},
	"stock: none is left, and one restored": {forSale(0).restoredBeside(addedHolding), "so many were not left"},
	"stock: added, and not written":         {forSale(3).at(10).told("v", 1, sluice.OutcomeAdded), "and never written"},
	"stock: cancelled, and held":            {forSale(3).takesAndClaims().logs(gone).byID(opCancel), "1 units are held, and the tasks hold 0"},
	"stock: sold twice":                     {forSale(3).takesAndClaims().logs(gone + soldOne + "; HINCRBY {Queue:loop}:stock sold:x 1").dequeues(), "2 units were sold, and tasks that held 1"},
	"stock: sold, and none has ended": {forSale(3).takesAndClaims().logs("HINCRBY {Queue:loop}:stock sold:x 1").at(50).logs(gone + soldOne).dequeues(),
		"1 units were sold, and tasks that held 0"},
	"stock: done, and put back":      {forSale(3).takesAndClaims().logs(gone + unheld).dequeues(), "were put back, and no client requested that"},
	"stock: cancelled, and sold":     {forSale(3).takesAndClaims().logs(gone + soldOne).byID(opCancel), "were sold, and no client requested that"},
	"stock: dropped, and sold":       {forSale(3).buries().logs(dropped + soldOne).byID(opDrop), "were sold, and no client requested that"},
	"stock: dropped, and not asked":  {forSale(3).buries().logs(dropped + unheld), "no client requested it"},
	"stock: not dropped":             {forSale(3).buries().byID(opDrop), "returned true at"},
	"stock: discarded, and sold":     {discards(true, strings.ReplaceAll(gone+soldOne, "Queue:loop", "Queue:work")), "were sold, and no client requested that"},
	"stock: handled, and put back":   {discards(false, strings.ReplaceAll(gone+unheld, "Queue:loop", "Queue:work")), "were put back, and no client requested that"},
	"stock: given back without them": {forSale(3).takesAndClaims().logs("ZREM Queue:loop t; ZADD Queue:loop @@40 t; HSET {Queue:loop}:state t 1::").settled(opRetry, "", 430, 0, done), "was given back with {item: n:0}"},
	"stock: sold later, and not swept": {forSale(3).takesAndClaims().logs(putOff).dequeues(),
		"half there when everything is quiet"},
	"stock: sold later, and put back": {forSale(3).takesAndClaims().logs(putOff).dequeues().at(60).logs("HDEL {Queue:loop}:state " + sold + unheld), "1 of them sold before, have ended"},
	"stock: sold later, and held again": {forSale(3).takesAndClaims().logs(putOff).dequeues().
		addedPlain(plainAgain + "; HSET {Queue:loop}:state " + sold + " *1,1:x::"), "and they are held again"},
	"stock: sold later, of another": {forSale(3).takesAndClaims().logs(gone + "; HSET {Queue:loop}:state " + sold + "u *1,1:x$").dequeues(), "is to give up"},
	"stock: all is gone":            {forSale(3).takes().at(20).logs("DEL {Queue:loop}:stock"), "of the stocks of loop"},

	"stock: a total of none":       {forSale(3).at(5).logs("HSET {Queue:loop}:stock total:x 4"), "got the total 4 at"},
	"stock: a total that is lost":  {forSale(3).at(5).recorded(record{Op: opSetStock, Name: loopQueue, Take: sluice.Take{Item: "x"}, Total: 4, Call: 5, Return: 6, Result: done}), "the log does not have it"},
	"stock: ended":                 {forSale(3).at(5).setTotal(noSale), ""},
	"stock: ended, of none":        {newScenario().at(5).recorded(record{Op: opEndSale, Name: loopQueue, Take: sluice.Take{Item: "x"}, Total: noSale, Call: 5, Return: 6, Result: done}), ""},
	"stock: not ended":             {forSale(3).at(5).recorded(record{Op: opEndSale, Name: loopQueue, Take: sluice.Take{Item: "x"}, Total: noSale, Call: 5, Return: 6, Result: done}), "the log does not have it"},
	"stock: ended, and not forgot": {forSale(3).takesAndClaims().logs(gone + soldOne).dequeues().at(50).logs("HDEL {Queue:loop}:stock total:x"), "the sale has ended, and 1 are sold"},

	"stock: sold out":                    {forSale(1).at(5).told("w", 2, sluice.OutcomeSoldOut), ""},
	"stock: sold out, of none":           {newScenario().at(5).told("w", 1, sluice.OutcomeSoldOut), ""},
	"stock: sold out, and enough left":   {forSale(3).at(5).told("w", 2, sluice.OutcomeSoldOut), "there were always 2"},
	"stock: sold out, and written":       {forSale(1).takes().at(5).told("v", 2, sluice.OutcomeSoldOut), "and written"},
	"stock: sold out, what takes none":   {forSale(1).at(5).told("w", 0, sluice.OutcomeSoldOut), "takes nothing"},
	"stock: sold out, what is restored":  {forSale(1).at(5).told("w", 2, sluice.OutcomeSoldOut).withLast(func(r *record) { r.Take.Restore = true }), "has its units whatever is left"},
	"stock: sold out a moment ago":       {soldOutBefore(90), ""},
	"stock: sold out too long ago":       {soldOutBefore(110), "there were always 2"},
	"stock: sold out, and a batch":       {soldOutBefore(90).withLast(func(r *record) { r.Batch = true }), "there were always 2"},
	"stock: sold out, and another Queue": {soldOutBefore(90).withLast(func(r *record) { r.Process = "b" }), "there were always 2"},
	"stock: sold out, and another asks":  {soldOutBefore(190).at(250).told("z", 2, sluice.OutcomeAdded).withLast(asksAround), ""},
	"stock: sold out, and another asks for long": {soldOutBefore(210).at(250).told("z", 2, sluice.OutcomeAdded).withLast(asksAround),
		"there were always 2"},
	"stock: kept":                  {forSale(3).takes().at(20).told("w", 1, sluice.OutcomeKept).at(40).logs(gone + unheld).byID(opCancel), ""},
	"stock: kept, and none is":     {forSale(3).at(20).told("w", 1, sluice.OutcomeKept), "and none had"},
	"stock: kept, of another item": {forSale(3).takes().at(20).told("w", 1, sluice.OutcomeKept).withLast(func(r *record) { r.Take.Item = "y" }), "and none had"},
	"stock: replaced":              {forSale(3).takes().at(20).told("v", 1, sluice.OutcomeUpdated), "and was told"},

	"stock: the library says otherwise": {forSale(3).takesAndClaims().logs(gone+soldOne).dequeues().showsStock(sluice.StockInfo{Total: 3, Left: 3}, 0), "and the library"},
	"stock: the library says nothing":   {forSale(3).showsStock(sluice.StockInfo{}, 0), "and the library"},
	"stock: no task has what is held":   {forSale(3).buries().showsStock(sluice.StockInfo{Total: 3, Left: 2, Held: 1}, 0), "and the tasks hold 0"},
	"stock: the library says of more":   {newScenario().showsStock(sluice.StockInfo{Total: 1, Left: 1}, 0), "the log does not have it"},
}

// soldOutBefore has too little left until 20, which a client is told at 19; and told again so long
// after that.
func soldOutBefore(long time.Duration) *scenario {
	return forSale(1).at(18).told("w", 2, sluice.OutcomeSoldOut).at(20).setTotal(3).at(19+long).told("w2", 2, sluice.OutcomeSoldOut)
}

func restores(r *record) { r.Take.Restore = true }

// restoredBeside adds "t" by what the log shows, and in the same transaction "u", which has a unit
// whatever is left.
func (s *scenario) restoredBeside(transaction string) *scenario {
	s.at(10).logs(transaction + "; " + strings.ReplaceAll(strings.ReplaceAll(addedHolding, " t", " u"), "u v", "u w"))
	s.told("v", 1, sluice.OutcomeAdded).told("w", 1, sluice.OutcomeAdded).withLast(restores).withLast(func(r *record) { r.ID = "u" })
	s.at(20).logs(gone + unheld).byID(opCancel)
	return s.logs(strings.ReplaceAll(gone, " t", " u") + unheld).byID(opCancel).withLast(func(r *record) { r.ID = "u" })
}

// asksAround has the last call last from 150 on until 500, with an unknown outcome.
func asksAround(r *record) { r.Call, r.Return, r.Result, r.Outcome = 150*ms, 500*ms, unknown, 0 }
