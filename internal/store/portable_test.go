package store

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the scripts may use of Lua: what 5.1, which Redis and Valkey have, and 5.4, which Dragonfly
// has, both know and mean alike; and of the server what 6.2 has.
var (
	luaWords = strings.Fields("and break do else elseif end false for function goto if in local nil not or repeat return then true until while")
	// unpack has a local name, since 5.4 knows it as table.unpack alone.
	luaGlobals = strings.Fields("ARGV KEYS error ipairs math next pairs pcall redis select string table tonumber tostring type")
	luaFields  = strings.Fields("math.abs math.ceil math.floor math.huge math.max math.min redis.acl_check_cmd redis.call redis.pcall string.byte string.find " +
		"string.format string.gmatch string.gsub string.len string.match string.rep string.sub table.concat table.insert table.remove table.sort")
	luaCommands = strings.Fields("DECRBY DEL GET HDEL HGET HGETALL HINCRBY HLEN HMGET HSCAN HSET PEXPIRE PTTL PUBLISH PUBSUB SET SPUBLISH TIME UNLINK ZADD ZCARD ZCOUNT " +
		"ZLEXCOUNT ZMSCORE ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZREM ZREMRANGEBYSCORE ZSCORE")
)

// unpacked is the line that names unpack as a global.
const unpacked = "local unpack = table.unpack or unpack"

// luaCode returns a script without its comments, and with the contents of its texts left out where
// plain is set.
func luaCode(source string, plain bool) string {
	token := regexp.MustCompile(`--[^\n]*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"`)
	return token.ReplaceAllStringFunc(source, func(s string) string {
		switch {
		case strings.HasPrefix(s, "--"):
			return ""
		case plain:
			return "''"
		}
		return s
	})
}

// notPortable returns what a script uses that not every server has.
func notPortable(source string) (found []string) {
	note := func(format string) { found = append(found, format) }
	for _, call := range regexp.MustCompile(`redis\.(p?call)\('([A-Z]+)'`).FindAllStringSubmatch(luaCode(source, false), -1) {
		if !slices.Contains(luaCommands, call[2]) {
			note("the command " + call[2])
		}
		if strings.HasSuffix(call[2], "PUBLISH") && call[1] != "pcall" {
			note(call[2] + " without pcall: it may be denied")
		}
	}
	code := strings.ReplaceAll(luaCode(source, true), unpacked, "local unpack")
	for _, field := range regexp.MustCompile(`\b(?:math|redis|string|table)\s*\.\s*\w+`).FindAllString(code, -1) {
		if !slices.Contains(luaFields, field) {
			note(field)
		}
	}
	if method := regexp.MustCompile(`\w:\w+\(`).FindString(code); method != "" {
		note("a method of a text, which a sandbox may not have: " + method)
	}
	own := map[string]bool{}
	for _, declared := range []string{
		`\blocal\s+(\w+(?:\s*,\s*\w+)*)`, `\bfor\s+(\w+(?:\s*,\s*\w+)*)\s*(?:=|\bin\b)`, `\bfunction\s*[\w.]*\s*\(([^)]*)\)`, `\blocal\s+function\s+(\w+)`,
	} {
		for _, names := range regexp.MustCompile(declared).FindAllStringSubmatch(code, -1) {
			for _, name := range regexp.MustCompile(`\w+`).FindAllString(names[1], -1) {
				own[name] = true
			}
		}
	}
	names := map[string]bool{}
	for _, name := range regexp.MustCompile(`(?:^|[^.:\w]|\.\.\s*)([A-Za-z_]\w*)`).FindAllStringSubmatch(code, -1) {
		names[name[1]] = true
	}
	for _, field := range regexp.MustCompile(`[{,]\s*(\w+)\s*=[^=]`).FindAllStringSubmatch(code, -1) { // of a table that is written down
		own[field[1]] = true
	}
	for name := range names {
		if !own[name] && !slices.Contains(luaWords, name) && !slices.Contains(luaGlobals, name) {
			note("the global " + name)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// TestScripts_ArePortable: to every server that runs scripts as Redis 6.2 does, on Lua 5.1 and on
// 5.4.
func TestScripts_ArePortable(t *testing.T) {
	scripts := Load(os.DirFS("../../lua"))
	for _, name := range slices.Sorted(maps.Keys(scripts.All)) {
		require.Empty(t, notPortable(scripts.All[name].Source()), name)
	}
	for script, want := range map[string]string{
		"return redis.call('LMPOP', KEYS[1])":       "the command LMPOP",
		"redis.call('PUBLISH', 'a', '')":            "PUBLISH without pcall: it may be denied",
		"return table.getn(ARGV)":                   "table.getn",
		"return math.pow(2, 3)":                     "math.pow",
		"function twice(x) return 2 * x end":        "the global twice",
		"n = 1":                                     "the global n",
		"local n = 1 -- m\nreturn n + m":            "the global m",
		"return { unpack(ARGV) }":                   "the global unpack",
		"return { a = cjson.encode(ARGV) }":         "the global cjson",
		"local s = 'x' return s:len()":              "a method of a text, which a sandbox may not have: s:len(",
		"return loadstring('return 1')()":           "the global loadstring",
		"return setfenv":                            "the global setfenv",
		"local t = {} for i, x in ipairs(t) do end": "",
		unpacked + "\nreturn { unpack(ARGV) }":      "",
		"return redis.error_reply('no')":            "redis.error_reply",
		"return bit.band(1, 2)":                     "the global bit",
		"local a = { b = 1 } return a.b .. ARGV[1]": "",
	} {
		require.Equal(t, want, strings.Join(notPortable(script), "; "), script)
	}
}
