// SPDX-License-Identifier: BSD-2-Clause

package support

// integer constrains the underlying types of enumerations and sets of flags.
type integer interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// named is the name of an enumeration's value, or of one or more bits of a set of flags.
type named[T integer] struct {
	value T
	name  string
}

// nameOf returns the first name of a value, or "".
func nameOf[T integer](v T, names []named[T]) string {
	for _, n := range names {
		if n.value == v {
			return n.name
		}
	}
	return ""
}

// enumString returns the name of a value. Hardware and libraries may be newer than the headers: a value without a name
// prints as the enumeration's name with the number.
func enumString[T integer](v T, enum string, names []named[T]) string {
	if name := nameOf(v, names); name != "" {
		return name
	}
	return string(append(appendInteger([]byte(enum+"("), v), ')'))
}

// enumText returns the name of a value, or its number.
func enumText[T integer](v T, names []named[T]) []byte {
	if name := nameOf(v, names); name != "" {
		return []byte(name)
	}
	return appendInteger(nil, v)
}

// enumJSON returns the name of a value as a string, or its number.
func enumJSON[T integer](v T, names []named[T]) []byte {
	if name := nameOf(v, names); name != "" {
		return quoted(name)
	}
	return appendInteger(nil, v)
}

// parseEnum parses the output of enumString and enumText, with or without the library's prefix and surrounding space.
func parseEnum[T integer](to *T, enum string, text []byte, names []named[T]) error {
	s := trim(string(text))
	if v, ok := valueOf(s, names); ok {
		*to = v
		return nil
	}
	if n := len(enum) + 1; len(s) > n && s[:n] == enum+"(" && s[len(s)-1] == ')' {
		if v, ok := parseInteger[T](s[n : len(s)-1]); ok {
			*to = v
			return nil
		}
	}
	return &textError{s, "a value of " + enum, "write a number that fits" + listed(names)}
}

// flagString joins the names of the set bits with |; bits without a name are in hex.
func flagString[T integer](v T, names []named[T]) string {
	if v == 0 {
		return "0"
	}
	if name := nameOf(v, names); name != "" {
		return name
	}
	var s []byte
	for _, n := range names {
		if n.value&(n.value-1) == 0 && v&n.value != 0 {
			s = append(append(s, n.name...), '|')
			v &^= n.value
		}
	}
	if v != 0 {
		return string(appendNumber(append(s, "0x"...), uint64(v), 16))
	}
	return string(s[:len(s)-1])
}

// parseFlags parses the output of flagString. An empty text, spaces around |, and numbers are allowed.
func parseFlags[T integer](to *T, set string, text []byte, names []named[T]) error {
	s := trim(string(text))
	var all T
	for begin, i := 0, 0; s != "" && i <= len(s); i++ {
		if i < len(s) && s[i] != '|' {
			continue
		}
		part := trim(s[begin:i])
		v, ok := valueOf(part, names)
		if !ok {
			return &textError{part, "a flag of " + set, "join flags with |; each is a number that fits" +
				listed(names)}
		}
		all |= v
		begin = i + 1
	}
	*to = all
	return nil
}

// valueOf returns the value of a name or a number.
func valueOf[T integer](s string, names []named[T]) (v T, ok bool) {
	for _, n := range names {
		if s == n.name || s != "" && s == withoutPrefix(n.name) {
			return n.value, true
		}
	}
	return parseInteger[T](s)
}

// withoutPrefix returns a C name without the prefix of its library, such as QPT_RC for IBV_QPT_RC, or "".
func withoutPrefix(name string) string {
	for i := range len(name) {
		switch c := name[i]; {
		case c == '_':
			return name[i+1:]
		case c >= 'a' && c <= 'z':
			return ""
		}
	}
	return ""
}

// fromJSON calls parse with a string or a number. By convention, null changes nothing.
func fromJSON(json []byte, parse func(text []byte) error) error {
	if string(json) == "null" {
		return nil
	}
	if n := len(json); n > 1 && json[0] == '"' && json[n-1] == '"' {
		json = json[1 : n-1]
	}
	return parse(json)
}

// quoted returns s as a JSON string; s needs no escapes.
func quoted(s string) []byte { return append(append([]byte{'"'}, s...), '"') }

// textError is a parse error.
type textError struct{ text, what, want string }

// Error quotes the text and masks control characters, since the text may come from an untrusted source.
func (e *textError) Error() string {
	const most = 60
	text := []byte(e.text[:min(len(e.text), most)])
	for i, c := range text {
		if c < ' ' || c > '~' || c == '"' {
			text[i] = '?'
		}
	}
	if len(e.text) > most {
		text = append(text, "..."...)
	}
	return string(quoted(string(text))) + " is not " + e.what + ": " + e.want
}

// listed returns the first names of a list, for an error.
func listed[T integer](names []named[T]) string {
	const most = 12
	s := ""
	for _, n := range names[:min(len(names), most)] {
		s += ", " + n.name
	}
	if more := len(names) - most; more > 0 {
		s += " or one of " + string(appendInteger(nil, int64(more))) + " more names"
	}
	return s
}

// trim removes surrounding white space.
func trim(s string) string {
	isSpace := func(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }
	for s != "" && isSpace(s[0]) {
		s = s[1:]
	}
	for s != "" && isSpace(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

// appendInteger appends a number in decimal.
func appendInteger[T integer](s []byte, v T) []byte {
	if v < 0 {
		return appendNumber(append(s, '-'), -uint64(v), 10)
	}
	return appendNumber(s, uint64(v), 10)
}

// appendNumber replaces strconv, which imports much of the standard library. Without it, packages of types compile for
// any GOOS and GOARCH in a fraction of a second.
func appendNumber(s []byte, v, base uint64) []byte {
	if v >= base {
		s = appendNumber(s, v/base, base)
	}
	return append(s, "0123456789abcdef"[v%base])
}

// parseInteger parses a number in decimal, or in hex after 0x, that fits into T.
func parseInteger[T integer](s string) (v T, ok bool) {
	negative := s != "" && s[0] == '-'
	if negative {
		s = s[1:]
	}
	base := uint64(10)
	if len(s) > 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		s, base = s[2:], 16
	}
	n, ok := parseNumber(s, base)
	switch v = T(n); {
	case !ok:
		return 0, false
	case negative:
		v = -v
		return v, v < 0 && -uint64(v) == n || n == 0
	}
	return v, v >= 0 && uint64(v) == n
}

// parseNumber parses digits.
func parseNumber(s string, base uint64) (n uint64, ok bool) {
	for i := range len(s) {
		d := uint64(digit(s[i]))
		if d >= base || n > (1<<64-1-d)/base {
			return 0, false
		}
		n = n*base + d
	}
	return n, s != ""
}

// digit returns the value of a hex digit, or 255.
func digit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}
