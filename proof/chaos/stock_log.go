package main

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// units are what a task holds of an item.
type units struct {
	item string
	n    int64 // 0 for none
}

// cutUnits reads "*<units>,<bytes of the item>:<item>" in front of a state field, and returns what
// is behind it.
func cutUnits(text string) (u units, rest string) {
	head, tail, _ := strings.Cut(text, ":")
	n, size, _ := strings.Cut(strings.TrimPrefix(head, "*"), ",")
	length, err := strconv.Atoi(size)
	if !strings.HasPrefix(head, "*") || err != nil || length > len(tail) {
		return units{}, text
	}
	u.item = tail[:length]
	u.n, _ = strconv.ParseInt(n, 10, 64)
	return u, tail[length:]
}

// stockKey is an item that a queue sells.
type stockKey struct{ queue, item string }

// stock is what a queue knows of an item, and what its state fields say.
type stock struct {
	isForSale bool // there is a total
	total     int64
	held      int64
	sold      int64
	inTasks   int64 // the sum of what the state fields hold
}

// left is how many units may be taken.
func (s stock) left() int64 {
	if !s.isForSale {
		return 0
	}
	return s.total - s.held - s.sold
}

// trade carries out a command on a queue's stocks.
func (k keyspace) trade(queue, verb string, args []string) {
	edit := func(field, value string) {
		what, item, isItem := strings.Cut(field, ":")
		if !isItem {
			return // how far the sweep has come
		}
		key := stockKey{queue, item}
		s := k.stocks[key]
		n, _ := strconv.ParseInt(value, 10, 64)
		of := map[string]*int64{"total": &s.total, "held": &s.held, "sold": &s.sold}[what]
		if verb == "HINCRBY" {
			n += *of
		}
		if *of = n; what == "total" {
			s.isForSale = value != ""
		}
		k.stocks[key] = s
	}
	switch verb {
	case "HSET":
		for i := 0; i+1 < len(args); i += 2 {
			edit(args[i], args[i+1])
		}
	case "HINCRBY":
		edit(args[0], args[1])
	case "HDEL":
		for _, field := range args {
			edit(field, "")
		}
	default: // DEL, UNLINK, and commands that are not expected here
		for key, s := range k.stocks {
			if key.queue == queue {
				k.stocks[key] = stock{inTasks: s.inTasks}
			}
		}
	}
}

// stockLog is what the log shows of all stocks.
type stockLog struct {
	faults []string
	was    map[stockKey][]stockThen
	sets   []stockSet
	ends   tally // of units
}

// stockThen is an item's stock since a time.
type stockThen struct {
	span
	stock
}

// stockSet is a change of a total, or the end of a sale.
type stockSet struct {
	span
	stockKey
	total int64 // noSale if it has ended
}

// noSale stands for the total of an item that is not for sale.
const noSale = -1

func newStockLog() stockLog { return stockLog{was: map[stockKey][]stockThen{}, ends: tally{}} }

// deal is what an entry of the log changes of stocks.
type deal struct {
	before map[stockKey]stock
	ends   []unitsEnd
	sold   map[taskKey]bool // the tasks whose units are sold
	isSet  map[stockKey]bool
}

// unitsEnd is the end of what a task held.
type unitsEnd struct {
	taskKey
	field
}

// goesOn says whether a state field of that name may have what is left of the task: of one that is
// sold, a field that no task has, since its name is longer than an ID.
func (e unitsEnd) goesOn(key taskKey) bool {
	return e.taskKey == key || e.queue == key.queue && isMark(key.id) && strings.HasSuffix(key.id, e.id)
}

// isMark says whether a state field of that name is no task's, and tells of units that are sold.
func isMark(name string) bool { return len(name) > 513 && strings.Trim(name[:513], ".") == "" }

func newDeal() *deal {
	return &deal{before: map[stockKey]stock{}, sold: map[taskKey]bool{}, isSet: map[stockKey]bool{}}
}

// deal notes what a command changes of stocks, before it is carried out.
func (r *replayer) deal(d *deal, command []string) {
	queue, which := queueName(command[1])
	verb, args := strings.ToUpper(command[0]), command[2:]
	switch {
	case which == "stock" && len(args) == 0:
		r.stockAmiss("%s of the stocks of %s", verb, queue)
	case which == "stock":
		for i := 0; i < len(args); i++ {
			what, item, _ := strings.Cut(args[i], ":")
			key := stockKey{queue, item}
			d.see(r, key)
			d.isSet[key] = d.isSet[key] || what == "total"
			if verb != "HDEL" {
				i++
			}
		}
	case which == "state" && verb == "HSET":
		for i := 0; i+1 < len(args); i += 2 {
			r.handOver(d, taskKey{queue, args[i]}, decodeField(args[i+1]))
		}
	case which == "state" && verb == "HDEL":
		for _, id := range args {
			r.handOver(d, taskKey{queue, id}, field{})
		}
	}
}

// see notes an item's stock before an entry.
func (d *deal) see(r *replayer, key stockKey) {
	if _, seen := d.before[key]; !seen && key.item != "" {
		d.before[key] = r.stocks[key]
	}
}

// handOver notes what a state field is about to hold.
func (r *replayer) handOver(d *deal, key taskKey, is field) {
	was := r.tasks[key].field
	if was.units == (units{}) && is.units == (units{}) {
		return
	}
	for _, u := range []units{{was.units.item, -was.units.n}, is.units} {
		if at := (stockKey{key.queue, u.item}); u.n != 0 {
			d.see(r, at)
			s := r.stocks[at]
			s.inTasks += u.n
			r.stocks[at] = s
		}
	}
	last := len(d.ends) - 1
	for last >= 0 && !d.ends[last].goesOn(key) {
		last--
	}
	switch {
	case is.ended && was.units != is.units: // a script that removes the task has removed the field before
		if last < 0 || d.ends[last].units != is.units {
			r.stockAmiss("%v is to give up %+v, and held %+v", key, is.units, was.units)
		} else {
			d.sold[d.ends[last].taskKey] = is.isSold
			d.ends = append(d.ends[:last], d.ends[last+1:]...)
		}
		d.sold[key] = is.isSold
		r.stockLog.ends["units whose end was put off"] += int(is.units.n)
	case is.ended && !was.ended:
		d.sold[key] = is.isSold
	case was.units != (units{}) && was.units != is.units:
		d.ends = append(d.ends, unitsEnd{key, was})
	case was.ended && was.isSold && !is.ended:
		r.stockAmiss("%v was sold %+v, and they are held again", key, was.units)
	}
}

// dealt checks what an entry has changed of stocks, and notes how they are then. Units are with
// the tasks that hold them. What is sold is what tasks held that have ended, all or none of them:
// a script ends all tasks in the same way.
func (r *replayer) dealt(d *deal, at *entry) {
	for key, was := range d.before {
		is := r.stocks[key]
		if is.held-is.inTasks != was.held-was.inTasks { // else it was amiss before
			r.stockAmiss("%v at %v: %d units are held, and the tasks hold %d", key, at.span, is.held, is.inTasks)
		}
		r.soldOf(d, key, is.sold-was.sold, at)
		if d.isSet[key] {
			total := int64(noSale)
			if is.isForSale {
				total = is.total
			}
			r.stockLog.sets = append(r.stockLog.sets, stockSet{at.span, key, total})
		}
		if is != was {
			r.stockLog.was[key] = append(r.stockLog.was[key], stockThen{at.span, is})
		}
	}
}

// soldOf checks what an entry has sold of an item, and notes of which tasks.
func (r *replayer) soldOf(d *deal, key stockKey, sold int64, at *entry) {
	if d.isSet[key] && !r.stocks[key].isForSale { // what was sold is forgotten
		if r.stocks[key].sold != 0 {
			r.stockAmiss("%v at %v: the sale has ended, and %d are sold", key, at.span, r.stocks[key].sold)
		}
		return
	}
	least, more := int64(0), int64(0)
	var ended []taskKey
	for _, end := range d.ends {
		switch of := (stockKey{end.queue, end.units.item}); {
		case of != key:
		case end.ended && end.isSold:
			least += end.units.n
		case !end.ended:
			more += end.units.n
			ended = append(ended, end.taskKey)
		}
	}
	switch sold {
	case least:
		r.stockLog.ends["units put back"] += int(more)
	case least + more:
		for _, id := range ended {
			d.sold[id] = true
		}
	default:
		r.stockAmiss("%v at %v: %d units were sold, and tasks that held %d, %d of them sold before, have ended", key, at.span, sold, least+more, least)
	}
	r.stockLog.ends["units sold"] += int(sold)
}

// restocked notes how the stocks are after data was lost.
func (r *replayer) restocked(was map[stockKey]stock, at span) {
	keys := maps.Clone(was)
	maps.Copy(keys, r.stocks)
	for key := range keys {
		if was[key] != r.stocks[key] {
			r.stockLog.was[key] = append(r.stockLog.was[key], stockThen{at, r.stocks[key]})
		}
	}
}

func (r *replayer) stockAmiss(format string, args ...any) {
	r.stockLog.faults = append(r.stockLog.faults, fmt.Sprintf(format, args...))
}
