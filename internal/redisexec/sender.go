package redisexec

import "time"

// Job is what a sender runs: an attempt or a pipeline that its caller can leave.
type Job interface{ Run() }

// senderIdle is how long a sender waits for another job before it ends.
const senderIdle = 200 * time.Millisecond

// Start has a job run in a goroutine. That is a sender which is idle, if there is one:
// the stack of a new goroutine has to grow each time to what go-redis needs, which costs
// a fifth of the throughput of 64 goroutines.
func (e *Executor) Start(job Job) {
	select {
	case e.jobs <- job:
	default:
		e.senders.Add()
		go e.runSender(job)
	}
}

// runSender runs jobs, this one first, until there has been none for senderIdle, or the
// executor is closed.
func (e *Executor) runSender(job Job) {
	defer e.senders.Done()
	timer := time.NewTimer(senderIdle)
	defer timer.Stop()
	for {
		job.Run()
		timer.Reset(senderIdle)
		select {
		case job = <-e.jobs:
		case <-timer.C:
			return
		case <-e.closed:
			return
		}
	}
}
