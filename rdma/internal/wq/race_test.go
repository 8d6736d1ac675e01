//go:build race

package wq

const underRaceDetector = true
