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

// Range and precision of latency histograms: 1 ns to 1 h, three significant digits.
const (
	hdrMost   = int64(time.Hour)
	hdrDigits = 3
)

// hdrSteps is the number of lines of a percentile distribution per halving of the remaining share.
const hdrSteps = 5

// distribution reports whether a file of that name has one histogram, as text.
func distribution(name string) bool { return strings.EqualFold(filepath.Ext(name), ".hgrm") }

// histograms checks the file name for histograms.
func (o *Options) histograms() error {
	switch {
	case o.HDR == "":
	case !o.Latency:
		return errors.New("histograms need a latency test; add --lat or leave out --hdr")
	case o.All && distribution(o.HDR):
		return fmt.Errorf("%s can hold only one histogram; name a FILE.hlog for several sizes", o.HDR)
	}
	return nil
}

// histogram returns the latencies of a row in nanoseconds.
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

// SaveHistograms writes the latencies of each size to a file. FILE.hgrm is a percentile table in microseconds for
// HdrHistogram's plotter; any other file is a log of compressed histograms in nanoseconds.
func (r *Report) SaveHistograms(name string) error {
	return save(name, func(w io.Writer) error {
		if distribution(name) {
			return r.writeDistribution(w)
		}
		return r.writeLog(w)
	})
}

// save writes a file atomically. It writes directly to a file that is not regular, such as a pipe or /dev/stdout, and
// follows symbolic links. It refuses a link or pipe of another user, even if one replaces this user's link while save
// runs.
func save(name string, write func(io.Writer) error) error {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
	case info.Mode()&os.ModeSymlink != 0:
		if foreign(info) {
			return linkOfAnother(name)
		}
		if info, err = os.Stat(name); err == nil && info.Mode().IsRegular() {
			if name, err = target(name); err != nil {
				return err
			}
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

// target follows symbolic links from a name.
func target(name string) (string, error) {
	for range 40 { // like the kernel
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
