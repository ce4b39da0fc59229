package main

import (
	"bufio"
	"context"
	"encoding/json"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// record is what a client records of one operation. It is written when the operation begins,
// and again with the same Seq when the client knows more: after a kill -9 the last one
// remains. Times are those of the machine's monotonic clock, which all processes share and
// which is never set.
type record struct {
	Process string `json:"-"` // from the file's name
	Seq     uint64 `json:"n"` // of the operation, in its process
	Op      op     `json:"op"`
	Name    string `json:"name,omitempty"` // of the lock or queue

	Call   time.Duration `json:"c"`           // read before the call
	Return time.Duration `json:"r,omitempty"` // read after the call; 0 while it lasts
	Result result        `json:"res,omitempty"`
	Limit  time.Duration `json:"l,omitempty"` // when the call's context ended, or would have ended

	// Of locks.
	Token    uint64        `json:"tok,omitempty"` // a hash; 0 if the client does not know it
	Fence    int64         `json:"f,omitempty"`
	Got      time.Duration `json:"g,omitempty"` // read after the lock was acquired, even if it was no longer held
	From     time.Duration `json:"a,omitempty"` // held from then on: read after the lock was acquired
	Until    time.Duration `json:"b,omitempty"` // held until then at least: read before a Valid that was true
	Deadline time.Duration `json:"d,omitempty"` // as last known
	TTL      time.Duration `json:"ttl,omitempty"`
	Unlock   time.Duration `json:"u,omitempty"`   // read before Unlock
	Set      bool          `json:"set,omitempty"` // taken together with others
	Section  bool          `json:"sec,omitempty"` // released by DoAll, to which a release without answer is no error
	Adopted  bool          `json:"ad,omitempty"`
	Permit   bool          `json:"pm,omitempty"`

	// Of tasks.
	ID       string        `json:"id,omitempty"`
	Version  string        `json:"v,omitempty"`  // of what was enqueued: the payload begins with it
	Score    float64       `json:"s,omitempty"`  // the receipt
	Delivery float64       `json:"s1,omitempty"` // the first receipt of the claim
	Attempt  int           `json:"at,omitempty"`
	Delay    time.Duration `json:"dl,omitempty"`
	Policy   int           `json:"p,omitempty"`
	Outcome  int           `json:"o,omitempty"`
	Limits   sluice.Limits `json:"lim,omitzero"` // of a queue
	Take     sluice.Take   `json:"tk,omitzero"`  // of what was enqueued, with one unit at least; Item alone of a stock
	Total    int64         `json:"tot,omitempty"`
	Batch    bool          `json:"ba,omitempty"` // enqueued together with others
	Group    string        `json:"gr,omitempty"`
	Stranger bool          `json:"st,omitempty"` // by a Queue that knows of no units and no groups
	Discards bool          `json:"di,omitempty"` // a handler returned Discard
	Read     float64       `json:"rd,omitempty"` // with which score it was read that is cancelled if it still has that
}

type op string

// What clients do.
const (
	opHold       op = "hold"
	opTake       op = "take"     // a lock that was not acquired
	opTakeSet    op = "take set" // one of several that were not
	opAdopt      op = "adopt"    // one that was not adopted
	opExtendLock op = "extend lock"
	opUnlockAll  op = "unlock all"
	opInspect    op = "inspect"
	opForce      op = "force unlock"
	opRegister   op = "register"
	opFinal      op = "final"
	opEnqueue    op = "enqueue"
	opCancel     op = "cancel"
	opReschedule op = "reschedule"
	opRevive     op = "revive"
	opPause      op = "pause"
	opSetLimits  op = "set limits"
	opDrop       op = "drop"
	opSetStock   op = "set stock"
	opEndSale    op = "delete stock"
	opList       op = "list"
	opClaiming   op = "claiming" // a call of Claim
	opDelivery   op = "delivery" // an entry that it returned
	opPopping    op = "popping"  // a call of Pop
	opPop        op = "pop"      // an entry that it returned
	opHandle     op = "handle"   // a Worker's handler
	opDequeue    op = "dequeue"
	opRetry      op = "retry"
	opRelease    op = "release"
	opBury       op = "bury"
	opExtend     op = "extend"
	opStuck      op = "stuck"
	opStall      op = "stall" // the process did not run
)

// result is the result of an operation.
type result string

const (
	pending    result = ""        // the call lasts, or its process was killed
	done       result = "ok"      // nil
	no         result = "no"      // a false
	locked     result = "locked"  // ErrLocked
	waited     result = "waited"  // ErrLocked with the context's error: it waited in line, or was told that it is held
	stale      result = "stale"   // ErrStale
	notHeld    result = "notheld" // ErrNotHeld
	lostIt     result = "lost"    // ErrLost
	unknown    result = "unknown" // ErrUnknown
	short      result = "short"   // ErrUnderReplicated: done, and too few replicas have it
	ctxEnded   result = "ctx"     // the context's error; nothing was sent
	corrupt    result = "corrupt" // ErrCorrupt
	refused    result = "refused" // any other error, which is definite
	expired    result = "expired" // a lock held until its deadline
	detached   result = "detached"
	outOfOrder result = "order" // a list with a task in a place that is not its own
	again      result = "again" // a handler returned Again(Delay)
)

// mayHaveRun says whether the server may have carried out an operation. Of an extension that
// is stale, an earlier attempt may have had no reply; the claim has ended since.
func (r record) mayHaveRun() bool {
	return r.Result == pending || r.Result == done || r.Result == unknown || r.Result == short || r.Op == opExtend && r.Result == stale
}

// recorder is a client's file. Each record is written at once and in one piece, so the
// kernel has it even if the process is killed.
type recorder struct {
	file *os.File
	seq  atomic.Uint64
}

func newRecorder(path string) (*recorder, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &recorder{file: file}, err
}

// begin writes the first record of an operation.
func (w *recorder) begin(rec record) record {
	rec.Seq = w.seq.Add(1)
	rec.Call = monotonic()
	w.write(rec)
	return rec
}

// end writes the last record of an operation.
func (w *recorder) end(rec record, r result) record {
	rec.Return, rec.Result = monotonic(), r
	w.write(rec)
	return rec
}

// endBy is end for an operation with a context that may have a deadline.
func (w *recorder) endBy(ctx context.Context, rec record, r result) record {
	rec.Return = monotonic()
	if deadline, ok := ctx.Deadline(); ok {
		rec.Limit = monotonic() + time.Until(deadline)
	}
	rec.Result = r
	w.write(rec)
	return rec
}

func (w *recorder) write(rec record) {
	line, err := json.Marshal(rec)
	if err == nil {
		_, err = w.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

// readRecords returns the last record of each operation, of all clients of a round.
func readRecords(dir string) (records []record, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.rec"))
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		process := strings.TrimSuffix(filepath.Base(path), ".rec")
		records = append(records, lastRecords(process, bufio.NewScanner(file))...)
		_ = file.Close()
	}
	return records, err
}

func lastRecords(process string, lines *bufio.Scanner) []record {
	var records []record
	at := map[uint64]int{}
	for lines.Scan() {
		rec := record{Process: process}
		if json.Unmarshal(lines.Bytes(), &rec) != nil {
			continue // half a line: the client was killed while it wrote
		}
		i, known := at[rec.Seq]
		if !known {
			i = len(records)
			at[rec.Seq] = i
			records = append(records, rec)
		}
		records[i] = rec
	}
	return records
}

// digest stands for a token in records and reports.
func digest(token string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(token))
	return h.Sum64() >> 12 // exact in any reader's JSON numbers
}
