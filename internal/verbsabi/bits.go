// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// bitfield is a bitfield whose position the compiler determines. No constant expression of C has the position, so the
// compiler produces an object file with a record in which only the bitfield's bits are set.
type bitfield struct {
	item   Item
	record string // C spelling of the type
	mask   []byte // the record's bytes with the bits of the field set
}

// bigEndian lists the targets on which C allocates the bits of a byte from the highest down.
var bigEndian = []string{"mips64", "ppc64", "s390x"}

// bitfield adds a check of the position of a record's bitfield.
func (w *Witness) bitfield(rec *model.Record, m member, item Item) {
	mask := make([]byte, rec.Size.On(w.Target))
	first := 8*(m.offset-m.field.Offset.On(w.Target)) + m.field.Bits.First.On(w.Target)
	for bit := first; bit < first+m.field.Bits.Width; bit++ {
		if slices.Contains(bigEndian, w.Target) {
			mask[bit/8] |= 0x80 >> (bit % 8)
		} else {
			mask[bit/8] |= 1 << (bit % 8)
		}
	}
	item.Want = hex.EncodeToString(mask)
	w.bits = append(w.bits, bitfield{item: item, record: rec.CName(), mask: mask})
}

// checkBits compiles the records and reports misplaced bitfields.
func (w *Witness) checkBits(ctx context.Context, cc Compiler, includeDir string) ([]Mismatch, error) {
	if len(w.bits) == 0 {
		return nil, nil
	}
	text := strings.Join(w.prelude, "\n") + "\n"
	for i, b := range w.bits {
		text += fmt.Sprintf("const %s goverbs_bits_%d = {.%s = -1};\n", b.record, i, b.item.Path)
	}
	object, err := cc.object(ctx, includeDir, text)
	if err != nil {
		return nil, fmt.Errorf("%s for %s: bitfields: %w", cc, w.Target, err)
	}
	var found []Mismatch
	for i, b := range w.bits {
		have, ok := object[fmt.Sprintf("goverbs_bits_%d", i)]
		if !ok {
			return nil, fmt.Errorf("%s for %s: %s: its object file lacks the record", cc, w.Target, b.item)
		}
		if !bytes.Equal(have, b.mask) {
			found = append(found, Mismatch{Item: b.item, Found: hex.EncodeToString(have),
				Message: "the bitfield's position differs"})
		}
	}
	return found, nil
}

// object compiles C text and returns the bytes of the objects that it defines.
func (c Compiler) object(ctx context.Context, includeDir, text string) (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "goverbs")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "bits.o")
	args := []string{"-std=gnu11", "-c", "-w", "-o", path}
	if includeDir != "" {
		for _, dir := range filepath.SplitList(includeDir) {
			args = append(args, "-isystem", dir)
		}
	}
	said, err := c.output(ctx, strings.NewReader(text), append(args, "-x", "c", "-")...)
	if err != nil {
		return nil, err
	}
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("no object file: %s", firstLines(said, 3))
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	objects := map[string][]byte{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_OBJECT || int(s.Section) >= len(f.Sections) {
			continue
		}
		data, err := f.Sections[s.Section].Data()
		if err != nil || s.Value+s.Size > uint64(len(data)) {
			return nil, fmt.Errorf("%s: corrupt object file", s.Name)
		}
		objects[s.Name] = data[s.Value : s.Value+s.Size]
	}
	return objects, nil
}
