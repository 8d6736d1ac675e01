// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// lineWidth limits the length of a JSON value on one line. Fields, enumerators and parameters fit on one line, so that
// the diff of a header bump shows one line for each.
const lineWidth = 160

// Encode writes the model as JSON in a stable order, formatted for reviewable diffs.
func (r *Release) Encode() ([]byte, error) {
	var raw bytes.Buffer
	enc := json.NewEncoder(&raw)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	layOut(&out, bytes.TrimSpace(raw.Bytes()), 0, 0)
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// layOut formats a compact JSON value: on one line if it fits, otherwise its elements on separate lines.
func layOut(out *bytes.Buffer, value []byte, depth, column int) {
	open := value[0]
	if (open != '{' && open != '[') || (depth > 0 && column+len(value) <= lineWidth) {
		out.Write(value)
		return
	}
	indent := func(n int) { out.WriteByte('\n'); out.Write(bytes.Repeat([]byte("\t"), n)) }
	out.WriteByte(open)
	for i, element := range elements(value) {
		if i > 0 {
			out.WriteByte(',')
		}
		indent(depth + 1)
		start := 0
		if open == '{' {
			start = stringEnd(element) + 1 // after the colon that follows the key
			out.Write(element[:start])
			out.WriteByte(' ')
		}
		layOut(out, element[start:], depth+1, 4*(depth+1)+start)
	}
	indent(depth)
	out.WriteByte(value[len(value)-1])
}

// elements splits the members of a compact JSON object or array.
func elements(value []byte) [][]byte {
	var all [][]byte
	depth, start := 0, 1
	for i := 1; i < len(value)-1; i++ {
		switch value[i] {
		case '"':
			i += stringEnd(value[i:]) - 1
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 0 {
				all = append(all, value[start:i])
				start = i + 1
			}
		}
	}
	if start < len(value)-1 {
		all = append(all, value[start:len(value)-1])
	}
	return all
}

// stringEnd returns the length of the JSON string at the start of b.
func stringEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// Decode parses and checks a model. name appears in errors.
func Decode(name string, data []byte) (*Release, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var r Release
	if err := dec.Decode(&r); err != nil {
		return nil, decodeError(name, data, dec.InputOffset(), err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, decodeError(name, data, dec.InputOffset(), errors.New("text after the model"))
	}
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w; record it again with make record", name, err)
	}
	return &r, nil
}

func decodeError(name string, data []byte, offset int64, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		offset = int64(len(data))
	}
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		offset = syntax.Offset
	}
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
		offset = mismatch.Offset
	}
	// the decoder has already consumed the field
	if _, field, ok := strings.Cut(err.Error(), "json: unknown field "); ok {
		if i := bytes.Index(data, []byte(field)); i >= 0 {
			offset = int64(i)
		}
	}
	offset = min(offset, int64(len(data)))
	line := 1 + bytes.Count(data[:offset], []byte("\n"))
	return fmt.Errorf("%s:%d: not a model: %w; record it again with make record", name, line, err)
}
