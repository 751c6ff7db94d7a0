// What the other two panels are asked over JSON.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

var panels = http.Client{Timeout: time.Minute}

// tokenize asks render for the ids of a text.
func tokenize(render, text string) ([]uint32, error) {
	body, err := json.Marshal(map[string]string{"prompt": text})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	response, err := panels.Post(render+"/tokenize", "application/json", bytes.NewReader(body))
	err = decode(response, err, &answer)
	return answer.Tokens, err
}

// vocabulary asks derender for the bytes of every id; special tokens have none, and so has an id that
// the model has beyond its tokenizer's.
func vocabulary(derender string) (map[uint32][]byte, error) {
	var answer struct {
		Tokens [][]byte `json:"tokens"` // base64 in JSON, which encoding/json undoes
	}
	response, err := panels.Get(derender + "/vocabulary")
	err = decode(response, err, &answer)
	pieces := make(map[uint32][]byte, len(answer.Tokens))
	for id, piece := range answer.Tokens {
		pieces[uint32(id)] = piece
	}
	return pieces, err
}

func decode(response *http.Response, err error, answer any) error {
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s: %s: %s", response.Request.URL, response.Status, message)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}
