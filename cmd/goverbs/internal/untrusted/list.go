// SPDX-License-Identifier: BSD-2-Clause

// Package untrusted decodes JSON that others may have written.
package untrusted

import (
	"bytes"
	"encoding/json"
	"errors"
)

// List is an array of objects. encoding/json alone makes an element of each value, whatever it is: an array of zeros
// takes a hundred times its bytes. Count the braces of a text to limit the elements of its lists.
type List[T any] []T

// UnmarshalJSON ends at the first element that is not an object.
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
