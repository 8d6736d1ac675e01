// SPDX-License-Identifier: BSD-2-Clause

// Package untrusted decodes untrusted JSON.
package untrusted

import (
	"bytes"
	"encoding/json"
	"errors"
)

// List is an array of objects. encoding/json accepts any value as an element, so that an array of zeros takes a hundred
// times its size. The number of elements is at most the number of braces in the text.
type List[T any] []T

// UnmarshalJSON stops at the first element that is not an object.
func (l *List[T]) UnmarshalJSON(text []byte) error {
	*l = nil
	d := json.NewDecoder(bytes.NewReader(text))
	switch begin, err := d.Token(); {
	case err != nil || begin == nil:
		return err
	case begin != json.Delim('['):
		return errors.New("json: not an array of objects")
	}
	*l = List[T]{}
	for d.More() {
		var element *T
		if err := d.Decode(&element); err != nil {
			return err
		}
		if element == nil {
			return errors.New("json: null in an array of objects")
		}
		*l = append(*l, *element)
	}
	return nil
}
