// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"time"
)

// waited measures how long the process has to wait for a processor: it sleeps again and again for a
// moment, and what it sleeps too long is what it waited. While it waits nothing is read from its
// sockets, whose buffers run over.
type waited struct {
	mu   sync.Mutex
	most time.Duration
}

const moment = 10 * time.Millisecond

func watchWaits() *waited {
	w := &waited{}
	go func() {
		for {
			began := time.Now()
			time.Sleep(moment)
			over := time.Since(began) - moment
			w.mu.Lock()
			w.most = max(w.most, over)
			w.mu.Unlock()
		}
	}()
	return w
}

// longest is the longest wait since it was asked last.
func (w *waited) longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.most
	w.most = 0
	return out
}
