/* Search from a folder. Browsers make no workers for pages of file:, so that the script of one runs
 * in a hidden frame there. Its name tells MkDocs' offline plugin not to fetch one from the network. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise(resolve => {
        const script = inner.document.createElement("script")
        script.src = url
        script.onload = () => resolve(inner)
        inner.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(inner => inner.dispatchEvent(new inner.MessageEvent("message", { data })))
    }
  }
