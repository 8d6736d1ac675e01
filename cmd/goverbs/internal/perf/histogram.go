// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// What histograms of latencies keep: values from a nanosecond to an hour, with three digits.
const (
	hdrMost   = int64(time.Hour)
	hdrDigits = 3
)

// hdrSteps is how many lines of a percentile distribution are between each share and the half of what it leaves.
const hdrSteps = 5

// distribution says if a file of that name has one histogram, as text.
func distribution(name string) bool { return strings.EqualFold(filepath.Ext(name), ".hgrm") }

// histograms says if latencies can be written to a file of that name.
func (o *Options) histograms() error {
	switch {
	case o.HDR == "":
	case !o.Latency:
		return errors.New("histograms are those of latencies: add --lat, or leave out --hdr")
	case o.All && distribution(o.HDR):
		return fmt.Errorf("%s has room for one histogram, and there is one for each size: name a FILE.hlog", o.HDR)
	}
	return nil
}

// histogram has a row's latencies, in nanoseconds.
func (r *Row) histogram() (*hdrhistogram.Histogram, error) {
	h := hdrhistogram.New(1, hdrMost, hdrDigits)
	h.SetTag(fmt.Sprintf("%d-bytes", r.Size))
	h.SetStartTimeMs(r.began.UnixMilli())
	h.SetEndTimeMs(r.ended.UnixMilli())
	for _, d := range r.times {
		if err := h.RecordValue(min(int64(d), hdrMost)); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// SaveHistograms writes the latencies of each size to a file. One with the name FILE.hgrm is a table of percentiles, in
// microseconds, for HdrHistogram's plotter; any other one is a log of compressed histograms, in nanoseconds.
func (r *Report) SaveHistograms(name string) error {
	return save(name, func(w io.Writer) error {
		if distribution(name) {
			return r.writeDistribution(w)
		}
		return r.writeLog(w)
	})
}

// save writes a file whole, or not at all. What is no file, such as a pipe, /dev/stdout or another device, is written
// to, for a file in its place would be none of them; a link leads to the file. A link or pipe that another user has put
// there is refused, also if it takes the place of a link of this user at the last moment.
func save(name string, write func(io.Writer) error) error {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
	case info.Mode()&os.ModeSymlink != 0:
		if foreign(info) {
			return linkOfAnother(name)
		}
		if info, err = os.Stat(name); err == nil && info.Mode().IsRegular() {
			name, err = target(name)
		}
	case info.Mode()&os.ModeNamedPipe != 0 && foreign(info):
		return fmt.Errorf("write: %q: the pipe belongs to another user", name)
	}
	if err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
			return errors.Join(err, fmt.Errorf("write: %q: another program replaced it", name))
		}
		return errors.Join(write(f), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func linkOfAnother(name string) error {
	return fmt.Errorf("write: %q: a link of another user is not followed", name)
}

// target follows links from a name to the name of a file.
func target(name string) (string, error) {
	for range 40 { // as the kernel does
		to, err := readLink(name)
		if err != nil || to == "" {
			return name, err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(name), to)
		}
		name = to
	}
	return "", fmt.Errorf("write: %q: too many links", name)
}

func (r *Report) writeDistribution(w io.Writer) error {
	for i := range r.Rows {
		h, err := r.Rows[i].histogram()
		if err != nil {
			return err
		}
		if _, err := h.PercentilesPrint(w, hdrSteps, float64(time.Microsecond)); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) writeLog(w io.Writer) error {
	log := hdrhistogram.NewHistogramLogWriter(w)
	err := errors.Join(log.OutputComment(fmt.Sprintf("[%s on %s, %s, by goverbs perf; nanoseconds]", r.Test, r.Device,
		r.Connection)), log.OutputLogFormatVersion())
	for i := range r.Rows {
		row := &r.Rows[i]
		if i == 0 {
			log.SetBaseTime(row.began.UnixMilli())
			err = errors.Join(err, log.OutputBaseTime(row.began.UnixMilli()),
				log.OutputStartTime(row.began.UnixMilli()), log.OutputLegend())
		}
		h, bad := row.histogram()
		if bad == nil {
			bad = log.OutputIntervalHistogram(h)
		}
		if err = errors.Join(err, bad); err != nil {
			return err
		}
	}
	return err
}
