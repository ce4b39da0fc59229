package model

// This file has what others do, which do not go through the library of this version.

// ForeignAdd adds a task as a foreign producer does, which writes only the sorted set.
func (q *Queue) ForeignAdd(id string, score float64) {
	it := q.Item(id)
	it.Queued, it.Score = true, score
}

// ForeignRemove removes a task as a foreign consumer does, which writes only the sorted set.
func (q *Queue) ForeignRemove(id string) {
	it := q.Item(id)
	it.Queued, it.Score = false, 0
}

// LaterVersion has a later version of the library note something of a task, and says whether it is
// in the queue.
func (q *Queue) LaterVersion(id, note string) bool {
	it := q.Item(id)
	if !it.Queued || it.Buried {
		return false
	}
	it.Claimant = note
	return true
}
