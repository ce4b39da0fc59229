package keyspace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Slots is how many slots a Cluster has.
const Slots = 1 << 14

// suffixDigits is how many octal digits a shard's main key ends with. Each digit adds three bits
// that can be chosen, and a slot has fourteen. With fewer digits some slots are out of reach.
const suffixDigits = 6

// Shard returns the main key of shard i of n of a queue with this main key, which has no hash tag:
// key:1.n.i.suffix; the 1 tells of this scheme. The suffix has the key fall into the slot in the middle of the i-th of n
// equal ranges, so that shards spread evenly over the nodes of a Cluster, for which it is usual
// to have equal ranges themselves.
//
// A CRC is linear: to change bits at the end of a key flips the same bits of its CRC, whatever
// stands before them. So the suffix is looked up by the difference that it has to make.
func Shard(key string, n, i int) string {
	prefix := fmt.Sprintf("%s:1.%d.%d.", key, n, i)
	middle := (2*i + 1) * Slots / (2 * n)
	return prefix + octal(int(suffixes()[Slot(prefix+octal(0))^middle]))
}

// suffixes returns for each difference of two slots the suffix that makes it, compared with zeros.
// Each bit of the suffix makes one difference, and several make the sum of theirs.
var suffixes = sync.OnceValue(func() *[Slots]int32 {
	table, reached := new([Slots]int32), []int{0}
	for bit := range 3 * suffixDigits {
		difference := Slot(octal(1<<bit)) ^ Slot(octal(0))
		if slices.Contains(reached, difference) {
			continue
		}
		for _, before := range reached {
			table[before^difference] = table[before] | 1<<bit
			reached = append(reached, before^difference)
		}
	}
	return table
})

func octal(number int) string {
	text := strconv.FormatInt(int64(number), 8)
	return strings.Repeat("0", suffixDigits-len(text)) + text
}

// Slot returns the slot of a key. See "Key distribution model" in the Redis Cluster specification.
func Slot(key string) int {
	if _, after, found := strings.Cut(key, "{"); found {
		if end := strings.Index(after, "}"); end > 0 {
			key = after[:end]
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc = crc<<8 ^ crcOf[byte(crc>>8)^key[i]]
	}
	return int(crc % Slots)
}

// crcOf is the CRC of each byte: CRC-16/XMODEM, of the polynomial 0x1021.
var crcOf = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8 //nolint:gosec // i fits
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
		table[i] = crc
	}
	return table
}()

// ShardOf returns the main key of the queue that has a key as the main key of one of its shards, and
// whether it is one.
func ShardOf(key string) (queue string, isShard bool) {
	at := strings.LastIndexByte(key, ':')
	if at < 0 {
		return "", false
	}
	parts := strings.Split(key[at+1:], ".")
	if len(parts) != 4 {
		return "", false
	}
	n, _ := strconv.Atoi(parts[1])
	i, _ := strconv.Atoi(parts[2])
	isShard = n > 1 && n <= Slots && i >= 0 && i < n && Shard(key[:at], n, i) == key
	return key[:at], isShard
}
