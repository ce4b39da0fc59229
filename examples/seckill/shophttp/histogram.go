package shophttp

import (
	"math/bits"
	"time"
)

// histogram counts times in buckets whose widths are an eighth of their values, so a percentile is
// exact to 12%.
type histogram map[int]int64

func bucketOf(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 0))
	if us < 8 {
		return int(us)
	}
	exponent := bits.Len64(us) - 4 // us>>exponent is 8 to 15
	return 8*exponent + int(us>>exponent)
}

// upperEnd returns the longest time of a bucket.
func upperEnd(bucket int) time.Duration {
	if bucket < 16 {
		return time.Duration(bucket) * time.Microsecond
	}
	exponent := bucket/8 - 1
	return time.Duration((uint64(bucket%8+9)<<exponent)-1) * time.Microsecond
}

func (h histogram) add(other histogram) {
	for bucket, n := range other {
		h[bucket] += n
	}
}

// percentile returns the time within which p percent of all lie; 0 if there are none.
func (h histogram) percentile(p float64) time.Duration {
	var total, seen, most int64
	for bucket, n := range h {
		total += n
		most = max(most, int64(bucket))
	}
	for bucket := range int(most) + 1 {
		if seen += h[bucket]; seen > 0 && float64(seen) >= p/100*float64(total) {
			return upperEnd(bucket)
		}
	}
	return 0
}
